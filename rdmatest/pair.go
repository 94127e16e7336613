package rdmatest

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// PairRecvSize is the size of the receives that QPPair and JoinedPair post.
const PairRecvSize = 4096

// pairAddrs are the hosts of a pair.
var pairAddrs = [2]netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, 1}), netip.AddrFrom4([4]byte{10, 0, 0, 2})}

// QPPair gives two queue pairs that the connection manager has connected, over a
// fabric of their own. cfg is that of both; completion queues and protection domains
// are made for each side, large enough: cfg.SendCQ and cfg.RecvCQ must be nil, and
// the sides have one queue each, QP().SendCQ().
//
// Each side has its receive queue full: receive i has the id i and PairRecvSize bytes
// at i*PairRecvSize of a memory region with all rights, which is twice as large as the
// receives, and the queue pair's UserData if cfg has none. Everything is closed when
// the test ends. It works in a testing/synctest bubble.
func QPPair(t testing.TB, cfg verbs.QPConfig) (a, b *cm.Conn) {
	t.Helper()
	f := NewFabric(t, 0)
	server, client := f.Host(pairAddrs[1]), f.Host(pairAddrs[0])
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l, err := cm.Listen(server, netip.AddrPortFrom(pairAddrs[1], 0).String(), nil)
	if err != nil {
		t.Fatalf("pair: listen: %v", err)
	}
	defer l.Close()
	type result struct {
		conn *cm.Conn
		err  error
	}
	accepted := make(chan result, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err != nil {
			accepted <- result{nil, err}
			return
		}
		if err = pairSide(t, r.Device(), cfg, r.CreateQP); err == nil {
			var c *cm.Conn
			if c, err = r.Accept(ctx, nil); err == nil {
				accepted <- result{c, nil}
				return
			}
		}
		accepted <- result{nil, errors.Join(err, r.Close())}
	}()
	r, err := cm.Resolve(ctx, client, l.Addr().String(), nil)
	if err == nil {
		if err = pairSide(t, r.Device(), cfg, r.CreateQP); err == nil {
			a, err = r.Connect(ctx, nil)
		}
		if err != nil {
			r.Close()
		}
	}
	if err != nil {
		cancel()
		<-accepted
		t.Fatalf("pair: connect: %v", err)
	}
	s := <-accepted
	if s.err != nil {
		a.Close()
		t.Fatalf("pair: accept: %v", s.err)
	}
	b = s.conn
	for _, c := range []*cm.Conn{a, b} {
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Errorf("pair: close: %v", err)
			}
		})
	}
	return a, b
}

// pairSide makes what a side needs and posts its receives.
func pairSide(t testing.TB, dev *verbs.Device, cfg verbs.QPConfig, create func(*verbs.PD, verbs.QPConfig) (*verbs.QP, error)) error {
	if cfg.SendCQ != nil || cfg.RecvCQ != nil || cfg.SRQ != nil {
		return errors.New("the configuration of a pair has no queues")
	}
	setDefault := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	setDefault(&cfg.MaxSendWR, 64)
	setDefault(&cfg.MaxRecvWR, 64)
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	t.Cleanup(func() { pd.Close() })
	if cfg.SendCQ, err = dev.CreateCQ(2*(cfg.MaxSendWR+cfg.MaxRecvWR)+16, nil); err != nil {
		return err
	}
	t.Cleanup(func() { cfg.SendCQ.Close() })
	mr, err := pd.Alloc(2*cfg.MaxRecvWR*PairRecvSize, allRights)
	if err != nil {
		return err
	}
	t.Cleanup(func() { mr.Close() })
	if cfg.UserData == nil {
		cfg.UserData = mr
	}
	qp, err := create(pd, cfg)
	if err != nil {
		return err
	}
	t.Cleanup(func() { qp.Close() })
	for i := range cfg.MaxRecvWR {
		if err := qp.PostRecv(verbs.Recv(uint64(i), mr.SGE(i*PairRecvSize, PairRecvSize))); err != nil {
			return err
		}
	}
	return nil
}

// JoinedPair is QPPair without a connection manager: the queue pairs are joined with
// verbs.QP.Endpoint and Join, with all remote rights and depths of 16.
func JoinedPair(t testing.TB, cfg verbs.QPConfig) (a, b *verbs.QP) {
	t.Helper()
	f := NewFabric(t, 0)
	var qps [2]*verbs.QP
	var ends [2]verbs.Endpoint
	for i, addr := range pairAddrs {
		dev, err := verbs.Open(f.Host(addr), "")
		if err != nil {
			t.Fatalf("pair: open: %v", err)
		}
		err = pairSide(t, dev, cfg, func(pd *verbs.PD, cfg verbs.QPConfig) (*verbs.QP, error) {
			qp, err := pd.CreateQP(cfg)
			if err != nil {
				return nil, err
			}
			qps[i] = qp
			ends[i], err = qp.Endpoint(1, -1)
			return qp, err
		})
		if err != nil {
			t.Fatalf("pair: %v", err)
		}
	}
	for i, qp := range qps {
		o := &verbs.PathOptions{Access: remoteAll | ib.LocalWrite, MaxRDAtomic: 16, MaxDestRDAtomic: 16}
		if err := qp.Join(ends[1-i], o); err != nil {
			t.Fatalf("pair: join: %v", err)
		}
	}
	return qps[0], qps[1]
}
