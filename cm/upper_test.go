package cm_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestUpperConnect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	l, err := cm.Listen(w.p, ":0", &cm.Config{TOS: 4, ReuseAddr: true, Backlog: 5})
	must(t, err)
	defer l.Close()
	if a, ok := l.Addr().(cm.Addr); !ok || a.Network() != "rdma" || a.Port() == 0 {
		t.Errorf("address %v", l.Addr())
	}
	served := make(chan *cm.Conn, 1)
	go func() {
		defer close(served)
		for req, err := range l.Requests(ctx) {
			if err != nil {
				t.Error(err)
				return
			}
			defer req.Close()
			if string(req.Private()[:5]) != "hello" || req.Param().RetryCount != 7 || req.Device() != w.dev || req.Port() != 1 || !req.LocalAddr().IsValid() || !req.RemoteAddr().IsValid() {
				t.Errorf("request %q %+v", req.Private(), req.Param())
			}
			w.post(w.create(req.CreateQP))
			c, err := req.Accept(ctx, &cm.ConnParam{Private: []byte("welcome")})
			if err != nil {
				t.Error(err)
				return
			}
			must(t, req.Close()) // accepted: nothing
			if _, err := req.Accept(ctx, nil); !errors.Is(err, cm.ErrState) {
				t.Errorf("second accept: %v", err)
			}
			served <- c
			return
		}
	}()
	r := w.resolve(ctx, l)
	if r.Device() != w.dev || r.Port() != 1 || r.RemoteAddr().Port() != l.Addr().(cm.Addr).Port() || !r.LocalAddr().IsValid() {
		t.Errorf("route %v->%v", r.LocalAddr(), r.RemoteAddr())
	}
	w.post(w.create(r.CreateQP))
	a, err := r.Connect(ctx, &cm.ConnParam{Private: []byte("hello")})
	must(t, err)
	must(t, r.Close()) // connected: nothing
	if _, err := r.Connect(ctx, nil); !errors.Is(err, cm.ErrState) {
		t.Errorf("second connect: %v", err)
	}
	b := <-served
	if string(a.Private()[:7]) != "welcome" || string(b.Private()[:5]) != "hello" {
		t.Errorf("private data %q, %q", a.Private(), b.Private())
	}
	if a.LocalAddr() != b.RemoteAddr() || a.RemoteAddr() != b.LocalAddr() || a.Device() != w.dev || a.QP().State() != ib.StateRTS || b.QP().State() != ib.StateRTS {
		t.Errorf("%v->%v, %v->%v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
	}
	select {
	case <-a.Done():
		t.Error("done")
	case <-b.Done():
		t.Error("done")
	default:
	}
	if a.Err() != nil || b.Err() != nil {
		t.Error(a.Err(), b.Err())
	}
	must(t, a.Close())
	must(t, a.Close())
	<-a.Done()
	<-b.Done() // nobody is in a call of b
	if !errors.Is(a.Err(), net.ErrClosed) || b.Err() != io.EOF || b.QP().Err() != io.EOF || b.QP().State() != ib.StateError {
		t.Errorf("causes %v, %v, %v", a.Err(), b.Err(), b.QP().Err())
	}
	must(t, b.Close())
	if b.Err() != io.EOF {
		t.Errorf("after Close the cause is %v", b.Err())
	}
}

func TestC228_ConcurrentConnects(t *testing.T) {
	t.Parallel()
	const n = 64
	w := newWorld(t)
	ctx := t.Context()
	l, err := cm.Listen(w.p, "10.0.0.1:0", nil)
	must(t, err)
	defer l.Close()
	done := make(chan error, 2*n)
	for range 4 { // several goroutines accept
		go func() {
			for req, err := range l.Requests(ctx) {
				if err != nil {
					return
				}
				go func() {
					defer req.Close()
					w.post(w.create(req.CreateQP))
					c, err := req.Accept(ctx, nil)
					if err == nil {
						<-c.Done()
						if err = c.Err(); err == io.EOF {
							err = nil
						}
						c.Close()
					}
					done <- err
				}()
			}
		}()
	}
	for range n {
		go func() {
			r, err := cm.Resolve(ctx, w.p, l.Addr().String(), nil)
			if err == nil {
				w.post(w.create(r.CreateQP))
				var c *cm.Conn
				if c, err = r.Connect(ctx, nil); err == nil {
					err = c.Close()
				}
			}
			done <- err
		}()
	}
	for range 2 * n {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestUpperRejects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	l, err := cm.Listen(w.p, "10.0.0.1:0", nil)
	must(t, err)
	defer l.Close()
	for _, how := range []string{"reject", "close"} {
		var answer sync.WaitGroup
		answer.Go(func() {
			req, err := l.Accept(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			if how == "reject" {
				if err := req.Reject([]byte("busy")); err != nil {
					t.Error(err)
				}
			}
			if err := req.Close(); err != nil {
				t.Error(err)
			}
			if _, err := req.Accept(ctx, nil); !errors.Is(err, net.ErrClosed) {
				t.Errorf("accept after %s: %v", how, err)
			}
		})
		r := w.resolve(ctx, l)
		qp := w.create(r.CreateQP)
		w.post(qp)
		_, err := r.Connect(ctx, nil)
		var rej *cm.RejectError
		if !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &rej) || rej.Reason != ib.RejectConsumer {
			t.Errorf("%s: %v", how, err)
		}
		if how == "reject" && string(rej.Private[:4]) != "busy" {
			t.Errorf("private data %q", rej.Private)
		}
		if err := qp.PostRecv(verbs.Recv(1, w.mr.SGE(0, 1))); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the queue pair was not closed: %v", err)
		}
		answer.Wait()
	}
	must(t, l.Close())
	must(t, l.Close())
	if _, err := l.Accept(ctx); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept on a closed listener: %v", err)
	}
}

// TestC223_CancelAtEachStep: every call returns at once with the context's error, and
// nothing is left of what it began.
func TestC223_CancelAtEachStep(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"ResolveAddr", "ResolveRoute", "Connect", "Establish"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				l, err := cm.Listen(w.p, "10.0.0.1:0", nil)
				must(t, err)
				defer l.Close()
				w.cm.Script(func(_ *scripted.CMID, c scripted.CMCall) (bool, error) { return c.Name == step, nil }) // never answered
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if step != "ResolveAddr" && step != "ResolveRoute" {
					ctx = t.Context()
				}
				start := time.Now()
				r, err := cm.Resolve(ctx, w.p, l.Addr().String(), nil)
				switch step {
				case "ResolveAddr", "ResolveRoute":
					if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("got %v", err)
					}
				default:
					must(t, err)
					qp := w.create(r.CreateQP)
					w.post(qp)
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					if step == "Connect" {
						_, err = r.Connect(ctx, nil)
					} else {
						go func() {
							c, err := r.Connect(t.Context(), nil)
							if err != nil {
								t.Error(err)
							}
							defer c.Close()
							<-c.Done()
							if c.Err() != io.EOF {
								t.Errorf("the peer sees %v", c.Err())
							}
						}()
						req, aerr := l.Accept(ctx)
						must(t, aerr)
						qp = w.create(req.CreateQP)
						w.post(qp)
						_, err = req.Accept(ctx, nil)
					}
					if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("got %v", err)
					}
					if err := qp.PostRecv(verbs.Recv(1, w.mr.SGE(0, 1))); !errors.Is(err, net.ErrClosed) {
						t.Errorf("the queue pair was not closed: %v", err)
					}
				}
				if d := time.Since(start); d != time.Hour {
					t.Errorf("returned after %v", d)
				}
				synctest.Wait()
			})
		})
	}
}

// TestC223_CancelBefore: a context that has ended starts nothing.
func TestC223_CancelBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	l, err := cm.Listen(w.p, "10.0.0.1:0", nil)
	must(t, err)
	defer l.Close()
	r := w.resolve(ctx, l)
	w.post(w.create(r.CreateQP))
	cancel()
	if _, err := r.Connect(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := l.Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	n := 0
	for _, err := range l.Requests(ctx) {
		n++
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if n != 1 {
		t.Errorf("%d pairs", n)
	}
	if len(w.cm.Calls("Connect")) != 0 {
		t.Error("the driver was asked to connect")
	}
}

// TestC226_WildcardWithoutIPv6: the empty host falls back to IPv4.
func TestC226_WildcardWithoutIPv6(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l, err := cm.Listen(w.p, ":0", nil)
	must(t, err)
	if a := l.Addr().(cm.Addr); a.Addr() != netip.IPv6Unspecified() {
		t.Errorf("address %v", a)
	}
	l.Close()
	w.cm.Script(func(_ *scripted.CMID, c scripted.CMCall) (bool, error) {
		return c.Name == "BindAddr" && c.Src.Addr().Is6(), syscall.EAFNOSUPPORT
	})
	l, err = cm.Listen(w.p, ":0", nil)
	must(t, err)
	if a := l.Addr().(cm.Addr); a.Addr() != netip.IPv4Unspecified() {
		t.Errorf("address %v", a)
	}
	l.Close()
	w.cm.Script(func(_ *scripted.CMID, c scripted.CMCall) (bool, error) {
		return c.Name == "BindAddr", syscall.EADDRINUSE
	})
	if _, err = cm.Listen(w.p, ":5", nil); !errors.Is(err, syscall.EADDRINUSE) {
		t.Error(err)
	}
	if n := len(w.cm.Calls("BindAddr")); n != 4 {
		t.Errorf("%d binds", n)
	}
}

// TestUpperRemoval: the removal of the device ends everything on it.
func TestUpperRemoval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, err := cm.Listen(w.p, "10.0.0.1:0", nil)
		must(t, err)
		defer l.Close()
		a, b := w.conns(l)
		errs := make(chan error)
		for range 2 {
			go func() { _, err := l.Accept(t.Context()); errs <- err }()
		}
		synctest.Wait()
		w.cm.RemoveDevice()
		<-a.Done()
		<-b.Done()
		for range 2 {
			if err := <-errs; !errors.Is(err, verbs.ErrDeviceGone) {
				t.Errorf("accept: %v", err)
			}
		}
		if _, err := l.Accept(t.Context()); !errors.Is(err, verbs.ErrDeviceGone) {
			t.Errorf("accept again: %v", err)
		}
		if !errors.Is(a.Err(), verbs.ErrDeviceGone) || !errors.Is(a.QP().Err(), verbs.ErrDeviceGone) {
			t.Errorf("%v, %v", a.Err(), a.QP().Err())
		}
		must(t, a.Close())
		must(t, b.Close())
	})
}

// TestDispatcherFails: if the channel fails, everything that depends on it ends, and
// the next use starts anew.
func TestDispatcherFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, err := cm.Listen(w.p, "10.0.0.1:0", nil)
		must(t, err)
		a, b := w.conns(l)
		r := w.resolve(t.Context(), l)
		w.post(w.create(r.CreateQP))
		w.cm.Script(func(_ *scripted.CMID, c scripted.CMCall) (bool, error) { return c.Name == "Connect", nil })
		errs := make(chan error)
		go func() { _, err := r.Connect(t.Context(), nil); errs <- err }()
		synctest.Wait()
		broken := errors.New("broken")
		w.cm.Break(broken)
		if err := <-errs; !errors.Is(err, broken) {
			t.Errorf("connect: %v", err)
		}
		<-a.Done()
		<-b.Done()
		if !errors.Is(a.Err(), broken) || !errors.Is(b.QP().Err(), broken) {
			t.Errorf("causes %v, %v", a.Err(), b.QP().Err())
		}
		if _, err := l.Accept(t.Context()); !errors.Is(err, broken) {
			t.Errorf("accept: %v", err)
		}
		l.Close()
		w.cm.Script(nil)
		l, err = cm.Listen(w.p, "10.0.0.1:0", nil)
		must(t, err)
		c, d := w.conns(l)
		for _, x := range []io.Closer{a, b, c, d, l} {
			must(t, x.Close())
		}
	})
}

// TestQueuePairFails: a connection whose queue pair fails by itself has ended, whether
// or not anybody reads its completions, and the peer hears of it.
func TestQueuePairFails(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(w *world, c *cm.Conn) error{
		"completion": func(w *world, c *cm.Conn) error {
			must(w.t, c.QP().PostSend(verbs.Send(7, w.mr.SGE(0, 8), ib.Signaled)))
			w.scriptedQP(c.QP()).CompleteSend(1, ib.StatusRetryExc)
			wc, err := w.cq.Next(w.t.Context())
			must(w.t, err)
			if wc.ID != 7 || wc.Status != ib.StatusRetryExc {
				w.t.Errorf("completion %+v", wc)
			}
			return ib.ErrRetryExc
		},
		"program": func(w *world, c *cm.Conn) error {
			must(w.t, c.QP().Fail())
			return verbs.ErrFailed
		},
		"closed": func(w *world, c *cm.Conn) error {
			must(w.t, c.QP().Close())
			return net.ErrClosed
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			a, b := w.conns(w.listener())
			want := fail(w, a)
			<-a.Done()
			if !errors.Is(a.Err(), want) || !errors.Is(a.QP().Err(), want) {
				t.Errorf("cause %v, of the queue pair %v, want %v", a.Err(), a.QP().Err(), want)
			}
			<-b.Done()
			if b.Err() != io.EOF {
				t.Errorf("the peer sees %v", b.Err())
			}
			must(t, a.Close())
		})
	}
}

// TestNoChannelPerConnection: connections share the dispatcher's channel; a listener
// has one more. When all are closed nothing is left.
func TestNoChannelPerConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.listener()
	for range 20 {
		w.conns(l)
	}
	if n := len(w.cm.Channels()); n != 2 {
		t.Errorf("%d channels for 20 connections, want 2", n)
	}
}
