package rdma_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/stream"
	"github.com/verbena-rdma/verbena/verbs"
)

// rawPeer is a peer without manners: a queue pair and a hello of its own.
type rawPeer struct {
	t    testing.TB
	cm   *cm.Conn
	qp   *verbs.QP
	cq   *verbs.CQ
	mr   *verbs.MR
	them stream.Hello

	waiting int   // requests that are not done
	failed  error // why one was not
}

// rawHello is what an honest peer of a mode would send.
func rawHello(mode stream.Mode, mr *verbs.MR) stream.Hello {
	r := mr.Remote(0, 4096)
	h := stream.Hello{Flags: stream.FlagIOMap, Credits: 8,
		SGLAddr: r.Addr, SGLKey: r.RKey, SGLLen: 2, BufAddr: r.Addr + 4096, BufKey: r.RKey, BufLen: 4096}
	if mode == stream.Verbena {
		h.Ext = stream.Extension{Version: 1, Credits: 12, RecvSize: 512, Instance: 42}
	}
	return h
}

// dialRaw connects with a hello that change may have spoilt.
func dialRaw(t testing.TB, from *place, address string, mode stream.Mode, change func([]byte) []byte) (*rawPeer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), from.of(20*time.Second, time.Minute))
	defer cancel()
	route, err := cm.Resolve(ctx, from.client, address, &cm.Config{LocalAddr: netip.AddrPortFrom(from.from, 0)})
	if err != nil {
		t.Fatal(err)
	}
	dev := route.Device()
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pd.Close() })
	cq, err := dev.CreateCQ(256, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cq.Close() })
	mr, err := pd.Alloc(1<<16, ib.LocalWrite|ib.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mr.Close() })
	qp, err := route.CreateQP(pd, verbs.QPConfig{SendCQ: cq, MaxSendWR: 64, MaxRecvWR: 64, MaxInline: 64, SignalAll: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 32 {
		if err := qp.PostRecv(verbs.Recv(uint64(i), mr.SGE(8192+i*512, 512))); err != nil {
			t.Fatal(err)
		}
	}
	h := rawHello(mode, mr)
	b := h.Append(nil)
	if change != nil {
		b = change(b)
	}
	// It asks for as many reads and atomics as there can be.
	conn, err := route.Connect(ctx, &cm.ConnParam{Private: b, ResponderResources: -1})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { conn.Close() })
	them, err := stream.ParseHello(conn.Private(), stream.Reply)
	if err != nil {
		t.Fatal(err)
	}
	return &rawPeer{t: t, cm: conn, qp: qp, cq: cq, mr: mr, them: them}, nil
}

// ring is the length of what the peer's key opens: the buffers of the hello and the table.
func (p *rawPeer) ring() uint64 {
	return p.them.SGLAddr - p.them.BufAddr + uint64(stream.TableLen(int(p.them.SGLLen), p.them.IOMap))
}

// post posts requests, unless one has failed.
func (p *rawPeer) post(wrs ...verbs.SendWR) {
	for _, wr := range wrs {
		if p.failed != nil {
			return
		}
		if err := p.qp.PostSend(wr); err != nil {
			p.failed = err
			return
		}
		p.waiting++
	}
}

// await waits until at most n requests are not done, or one has failed: what is done has
// arrived.
func (p *rawPeer) await(n int) {
	for p.failed == nil && p.waiting > n {
		wc, err := p.cq.Next(p.t.Context())
		switch {
		case err != nil:
			p.failed = err
		case wc.Opcode == ib.WCRecv || wc.Opcode == ib.WCRecvWriteImm:
		case wc.Err() != nil:
			p.failed = wc.Err()
		default:
			p.waiting--
		}
	}
}

// protocolError reports a call that has not failed with the offence of the peer.
func protocolError(t testing.TB, what string, err error, says string) {
	t.Helper()
	if !errors.Is(err, syscall.EPROTO) || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want EPROTO and %q", what, err, says)
	}
}

// besides gives f a peer without manners and our end of its connection, and looks whether
// other connections, and the listener, are unharmed. It is on the fabric, in virtual time; in the
// lab, on the places of the lab and in real time.
func besides(t *testing.T, mode stream.Mode, change func([]byte) []byte, f func(l *rig, p *rawPeer, bad *rdma.Conn)) {
	t.Helper()
	if at := onKernel(t); at != nil {
		t.Parallel() // most of the time is waiting
		besidesAt(t, at, mode, change, f)
		return
	}
	synctest.Test(t, func(t *testing.T) { besidesAt(t, onFabric(t), mode, change, f) })
}

func besidesAt(t *testing.T, at *place, mode stream.Mode, change func([]byte) []byte, f func(l *rig, p *rawPeer, bad *rdma.Conn)) {
	l := &rig{place: at, client: rdma.Config{Compatible: mode == stream.Compatible}}
	ln := l.listen(t)
	defer ln.Close()
	var others [2]neighbour
	others[0].open(t, l, ln)
	defer others[0].close()
	p, err := dialRaw(t, at, ln.Addr().String(), mode, change)
	if err != nil {
		t.Fatal(err)
	}
	bad, err := ln.AcceptRDMA()
	if err != nil {
		t.Fatal(err)
	}
	others[1].open(t, l, ln)
	defer others[1].close()
	f(l, p, bad)
	for i := range others {
		others[i].unharmed(t)
	}
	s, c := l.connect(t, ln)
	closeBoth(s, c)
}

// neighbour is a connection beside another one, with memory from the same place. There are
// bytes in it that came and are not read yet.
type neighbour struct {
	s, c   *rdma.Conn
	unread []byte
}

func (n *neighbour) open(t testing.TB, l *rig, ln *rdma.Listener) {
	t.Helper()
	n.s, n.c = l.connect(t, ln)
	n.unread = pattern(500, 9) // one message: its first byte has come with all others
	writes(t, n.c, n.unread)
	reads(t, n.s, n.unread[:1])
	n.unread = n.unread[1:]
}

func (n *neighbour) close() { closeBoth(n.s, n.c) }

// unharmed looks whether these bytes are what they were, and whether it goes on.
func (n *neighbour) unharmed(t testing.TB) {
	t.Helper()
	reads(t, n.s, n.unread)
	for _, size := range []int{8, 3000} {
		writes(t, n.s, pattern(size, size))
		reads(t, n.c, pattern(size, size))
		writes(t, n.c, pattern(size, 1))
		reads(t, n.s, pattern(size, 1))
	}
}
