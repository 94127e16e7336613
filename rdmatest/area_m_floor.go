package rdmatest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area M, fifth part: the floor that waits.

// waiting is a connection of the floor that waits.
type waiting struct {
	conn *cm.Conn
	pd   *verbs.PD
	cq   *verbs.CQ
	mr   *verbs.MR
	qp   *verbs.QP
}

// gear makes what a connection needs, and posts a receive of the first 1024 bytes.
func (t *tb) gear(dev *verbs.Device, create func(*verbs.PD, verbs.QPConfig) (*verbs.QP, error)) (*waiting, error) {
	w := &waiting{}
	var err error
	if w.pd, err = dev.AllocPD(); err != nil {
		return w, err
	}
	if w.cq, err = dev.CreateCQ(32, nil); err != nil {
		return w, err
	}
	if w.mr, err = w.pd.Alloc(4096, allRights); err != nil {
		return w, err
	}
	if w.qp, err = create(w.pd, verbs.QPConfig{SendCQ: w.cq, MaxSendWR: 8, MaxRecvWR: 8}); err != nil {
		return w, err
	}
	return w, w.qp.PostRecv(verbs.Recv(1, w.mr.SGE(0, 1024)))
}

func (w *waiting) close() error {
	var errs []error
	if w.conn != nil {
		errs = append(errs, w.conn.Close())
	}
	if w.mr != nil {
		errs = append(errs, w.mr.Close())
	}
	if w.cq != nil {
		errs = append(errs, w.cq.Close())
	}
	if w.pd != nil {
		errs = append(errs, w.pd.Close())
	}
	return errors.Join(errs...)
}

// serveOne accepts the next request of a listener.
func (t *tb) serveOne(ctx context.Context, l *cm.Listener, private []byte) (*waiting, error) {
	r, err := l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	w, err := t.gear(r.Device(), r.CreateQP)
	if err == nil {
		w.conn, err = r.Accept(ctx, &cm.ConnParam{Private: private})
	}
	if err != nil {
		return nil, errors.Join(err, r.Close(), w.close())
	}
	return w, nil
}

// connectTo connects to an address.
func (t *tb) connectTo(ctx context.Context, addr string, p *cm.ConnParam) (*waiting, error) {
	r, err := cm.Resolve(ctx, t.Provider, addr, nil)
	if err != nil {
		return nil, err
	}
	w, err := t.gear(r.Device(), r.CreateQP)
	if err == nil {
		w.conn, err = r.Connect(ctx, p)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close(), w.close())
	}
	return w, nil
}

// serve listens on the peer's address, on the floor that waits.
func (t *tb) serve() (*cm.Listener, string) {
	t.Helper()
	l, err := cm.Listen(t.Peer, netip.AddrPortFrom(t.PeerAddr, 0).String(), nil)
	t.ok(err, "listen")
	t.Cleanup(func() { t.closed(l, "listener") })
	a, err := netip.ParseAddrPort(l.Addr().String())
	t.ok(err, "parse the listener's address %v", l.Addr())
	return l, a.String()
}

func waitingFloor(t *tb) {
	l, addr := t.serve()
	type result struct {
		w   *waiting
		err error
	}
	served := make(chan result, 1)
	go func() {
		w, err := t.serveOne(t.limit, l, []byte("welcome"))
		served <- result{w, err}
	}()
	c, err := t.connectTo(t.limit, addr, &cm.ConnParam{Private: []byte("hello")})
	t.ok(err, "connect")
	r := <-served
	t.ok(r.err, "accept")
	s := r.w
	if p := string(c.conn.Private()[:7]); p != "welcome" {
		t.Errorf("the client got %q", p)
	}
	if p := string(s.conn.Private()[:5]); p != "hello" {
		t.Errorf("the server got %q", p)
	}
	if c.conn.RemoteAddr().String() != addr || c.conn.LocalAddr() != s.conn.RemoteAddr() || s.conn.LocalAddr() != c.conn.RemoteAddr() {
		t.Errorf("addresses %v %v, %v %v", c.conn.LocalAddr(), c.conn.RemoteAddr(), s.conn.LocalAddr(), s.conn.RemoteAddr())
	}
	copy(c.mr.Bytes()[2048:], "ping")
	t.ok(c.qp.PostSend(verbs.Send(2, c.mr.SGE(2048, 4), ib.Signaled)), "post")
	wc, err := s.cq.Next(t.limit)
	t.ok(err, "wait for the message")
	if wc.Status != ib.StatusSuccess || string(s.mr.Bytes()[:4]) != "ping" {
		t.Errorf("message: %v", wc.Status)
	}
	wc, err = c.cq.Next(t.limit)
	t.ok(err, "wait for the send")
	t.ok(wc.Err(), "send")
	select {
	case <-s.conn.Done():
		t.Error("the connection has ended")
	default:
	}
	// The peer's end is seen in the queue, with its cause.
	t.ok(s.qp.PostRecv(verbs.Recv(3, s.mr.SGE(0, 1024))), "post a receive")
	t.ok(c.close(), "close the client")
	wc, err = s.cq.Next(t.limit)
	t.ok(err, "wait for the end")
	if wc.Status != ib.StatusWRFlush {
		t.Errorf("receive ended with %v", wc.Status)
	}
	t.isErr(s.qp.Err(), io.EOF, "cause of the queue pair")
	<-s.conn.Done()
	t.isErr(s.conn.Err(), io.EOF, "cause of the connection")
	t.ok(s.close(), "close the server")
	t.isErr(s.conn.Err(), io.EOF, "cause after Close")
	t.isErr(c.conn.Err(), net.ErrClosed, "cause at who closed")
}
