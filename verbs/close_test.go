package verbs_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// world is one object of each kind.
type world struct {
	dev *verbs.Device
	pd  *verbs.PD
	buf *verbs.Buffer
	mr  *verbs.MR
	ch  *verbs.CompChannel
	cq  *verbs.CQ
	srq *verbs.SRQ
	qp  *verbs.QP
	sqr *verbs.QP // takes from srq
	ah  *verbs.AH
	mw  *verbs.MW
}

func (w *world) all() map[string]closer {
	return map[string]closer{"pd": w.pd, "buffer": w.buf, "mr": w.mr, "channel": w.ch, "cq": w.cq, "srq": w.srq, "qp": w.qp,
		"qp with srq": w.sqr, "ah": w.ah, "mw": w.mw}
}

// build makes a world on a private device; what an error leaves behind is closed.
func build(info verbs.DeviceInfo) (w *world, err error) {
	w = &world{}
	var open []closer
	defer func() {
		if err != nil {
			rand.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
			for _, c := range open {
				c.Close()
			}
		}
	}()
	step := func(c closer, e error) bool {
		if e != nil {
			err = e
			return false
		}
		open = append(open, c)
		return true
	}
	if w.dev, err = info.OpenPrivate(); !step(w.dev, err) {
		return nil, err
	}
	if w.pd, err = w.dev.AllocPD(); !step(w.pd, err) {
		return nil, err
	}
	if w.buf, err = verbs.AllocBuffer(4096, nil); !step(w.buf, err) {
		return nil, err
	}
	if w.mr, err = w.pd.Register(w.buf, ib.LocalWrite|ib.RemoteWrite); !step(w.mr, err) {
		return nil, err
	}
	if w.ch, err = w.dev.CreateCompChannel(); !step(w.ch, err) {
		return nil, err
	}
	if w.cq, err = w.dev.CreateCQ(100, &verbs.CQConfig{Channel: w.ch}); !step(w.cq, err) {
		return nil, err
	}
	if w.srq, err = w.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 8}); !step(w.srq, err) {
		return nil, err
	}
	if w.qp, err = w.pd.CreateQP(verbs.QPConfig{SendCQ: w.cq, MaxSendWR: 8, MaxRecvWR: 8}); !step(w.qp, err) {
		return nil, err
	}
	if w.sqr, err = w.pd.CreateQP(verbs.QPConfig{SendCQ: w.cq, SRQ: w.srq, MaxSendWR: 8}); !step(w.sqr, err) {
		return nil, err
	}
	if w.ah, err = w.pd.CreateAH(attrs().AH); !step(w.ah, err) {
		return nil, err
	}
	if w.mw, err = w.pd.AllocMW(ib.MWType2); !step(w.mw, err) {
		return nil, err
	}
	return w, w.connect()
}

func (w *world) connect() error {
	for _, qp := range []*verbs.QP{w.qp, w.sqr} {
		for _, s := range []ib.QPState{ib.StateInit, ib.StateRTR, ib.StateRTS} {
			a := attrs()
			a.State = s
			if err := qp.Modify(&a, required(ib.RC, s-1, s)); err != nil {
				return err
			}
		}
	}
	return nil
}

// gone checks that a private device left nothing.
func gone(t *testing.T, p *scripted.Provider, dev *verbs.Device) {
	t.Helper()
	if left := dev.Objects(); len(left) != 0 {
		t.Errorf("objects left: %q", left)
	}
	if n := p.Open(); n != 0 {
		t.Errorf("%d objects of the provider left", n)
	}
	for _, v := range p.Violations() {
		t.Errorf("contract: %s", v)
	}
}

// TestC018_AnyOrder closes everything in random orders: the device's objects go children
// first, each once, and work until they are closed. C-059, C-254, C-170.
func TestC018_AnyOrder(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 3))
	p := scripted.New(nil)
	infos, err := verbs.Devices(p)
	if err != nil {
		t.Fatal(err)
	}
	for range 300 {
		w, err := build(infos[0])
		if err != nil {
			t.Fatal(err)
		}
		objects := []closer{w.dev, w.pd, w.buf, w.mr, w.ch, w.cq, w.srq, w.qp, w.sqr, w.ah, w.mw}
		rnd.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
		closed := map[closer]bool{}
		for _, o := range objects {
			if !closed[w.qp] && !closed[w.cq] {
				err := w.qp.PostRecv(verbs.RecvWR{})
				if err != nil && err != verbs.ErrQueueFull {
					t.Fatalf("post: %v", err)
				}
			}
			for range 1 + rnd.IntN(2) {
				if err := o.Close(); err != nil {
					t.Fatalf("close %T: %v", o, err)
				}
			}
			closed[o] = true
		}
		gone(t, p, w.dev)
	}
	// Nothing of a closed domain or device, though its children live.
	w, err := build(infos[0])
	if err != nil {
		t.Fatal(err)
	}
	w.dev.Close()
	w.pd.Close()
	for name, f := range map[string]func() error{
		"AllocPD":  func() error { _, err := w.dev.AllocPD(); return err },
		"CreateCQ": func() error { _, err := w.dev.CreateCQ(1, nil); return err },
		"Attr":     func() error { _, err := w.dev.Attr(); return err },
		"Alloc":    func() error { _, err := w.pd.Alloc(1, 0); return err },
		"Register": func() error { _, err := w.pd.Register(w.buf, 0); return err },
		"CreateQP": func() error {
			_, err := w.pd.CreateQP(verbs.QPConfig{SendCQ: w.cq, MaxSendWR: 1, MaxRecvWR: 1})
			return err
		},
		"CreateSRQ": func() error { _, err := w.pd.CreateSRQ(verbs.SRQConfig{}); return err },
		"AllocMW":   func() error { _, err := w.pd.AllocMW(ib.MWType2); return err },
	} {
		if err := f(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left := w.dev.Objects(); len(left) != 9 || !strings.Contains(left[0], "closed but in use") {
		t.Errorf("objects: %q", left)
	}
	for _, c := range w.all() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	gone(t, p, w.dev)
}

// calls are all calls of a world, each as often as it likes.
func (w *world) calls(ctx context.Context) map[string]func() error {
	var wcs [4]verbs.WC
	a := attrs()
	return map[string]func() error{
		"Attr":     func() error { _, err := w.dev.Attr(); return err },
		"GIDs":     func() error { _, err := w.dev.GIDs(); return err },
		"Async":    func() error { _, err := w.dev.Async().Event(ctx); return err },
		"TryAsync": func() error { _, _, err := w.dev.Async().TryEvent(); return err },
		"Alloc":    func() error { m, err := w.pd.Alloc(64, 0); return closeIf(m, err) },
		"Register": func() error { m, err := w.pd.Register(w.buf, 0); return closeIf(m, err) },
		"CreateQP": func() error {
			q, err := w.pd.CreateQP(verbs.QPConfig{SendCQ: w.cq, MaxSendWR: 1, MaxRecvWR: 1})
			return closeIf(q, err)
		},
		"CreateCQ":    func() error { q, err := w.dev.CreateCQ(4, &verbs.CQConfig{Channel: w.ch}); return closeIf(q, err) },
		"CreateAH":    func() error { h, err := w.pd.CreateAH(a.AH); return closeIf(h, err) },
		"Poll":        func() error { _, err := w.cq.Poll(wcs[:]); return err },
		"Wait":        func() error { _, err := w.cq.Wait(ctx, make([]verbs.WC, 2)); return err },
		"Completions": func() error { return last(w.cq.Completions(ctx)) },
		"Arm":         func() error { _, err := w.cq.Arm(ib.NotifyAny); return err },
		"Resize":      func() error { return w.cq.Resize(200) },
		"Event":       func() error { _, err := w.ch.Event(ctx); return err },
		"TryEvent":    func() error { _, _, err := w.ch.TryEvent(); return err },
		"PostSend":    func() error { return w.qp.PostSend(verbs.Send(1, w.mr.SGE(0, 8), ib.Signaled)) },
		"PostList":    func() error { _, err := w.qp.PostSendList(make([]verbs.SendWR, 3)); return err },
		"PostRecv":    func() error { return w.qp.PostRecv(verbs.Recv(1, w.mr.SGE(0, 8))) },
		"PostSRQ":     func() error { return w.srq.PostRecv(verbs.Recv(1, w.mr.SGE(0, 8))) },
		"SetLimit":    func() error { return w.srq.SetLimit(3) },
		"Modify":      func() error { return w.qp.Modify(&a, ib.AttrMinRNRTimer) },
		"Query":       func() error { _, err := w.qp.Query(ib.AttrState); return err },
		"Drain":       func() error { return w.sqr.Drain(ctx) },
		"Fail":        func() error { return w.qp.Fail() },
		"Objects":     func() error { w.dev.Objects(); return nil },
	}
}

func closeIf[T closer](c T, err error) error {
	if err != nil {
		return err
	}
	return c.Close()
}

// TestCloseDuringCalls closes each object while each call is in flight. Nothing hangs,
// every call ends, and the provider sees no call after or beside a Close (C-089, P62).
func TestCloseDuringCalls(t *testing.T) {
	t.Parallel()
	probe, err := build(mustInfo(t, scripted.New(nil)))
	if err != nil {
		t.Fatal(err)
	}
	objects, calls := []string{}, []string{}
	for name := range probe.all() {
		objects = append(objects, name)
	}
	for name := range probe.calls(bg) {
		calls = append(calls, name)
	}
	for _, c := range probe.all() {
		c.Close()
	}
	probe.dev.Close()
	for _, object := range objects {
		t.Run(object, func(t *testing.T) {
			t.Parallel()
			for _, call := range calls {
				p := scripted.New(nil)
				w, err := build(mustInfo(t, p))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(bg, 20*time.Second)
				var wg sync.WaitGroup
				started := make(chan struct{})
				var once sync.Once
				for range 2 {
					wg.Go(func() {
						f := w.calls(ctx)[call]
						for i := range 200 {
							if i == 1 {
								once.Do(func() { close(started) })
							}
							err := f()
							if errors.Is(err, context.DeadlineExceeded) {
								t.Errorf("%s hung when the %s was closed", call, object)
								return
							}
							if errors.Is(err, net.ErrClosed) || errors.Is(err, context.Canceled) {
								break
							}
						}
						once.Do(func() { close(started) })
					})
				}
				select {
				case <-started:
				case <-time.After(time.Millisecond): // it waits
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					for range 2 {
						wg.Go(func() {
							if err := w.all()[object].Close(); err != nil {
								t.Errorf("close the %s during %s: %v", object, call, err)
							}
						})
					}
				}()
				<-done
				runtime.Gosched()
				cancel2 := time.AfterFunc(5*time.Millisecond, cancel) // of calls that wait for something else
				wg.Wait()
				cancel2.Stop()
				cancel()
				for _, c := range w.all() {
					if err := c.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
				}
				w.dev.Close()
				gone(t, p, w.dev)
			}
		})
	}
}

func mustInfo(t *testing.T, p verbs.Provider) verbs.DeviceInfo {
	t.Helper()
	infos, err := verbs.Devices(p)
	if err != nil || len(infos) == 0 {
		t.Fatal(infos, err)
	}
	return infos[0]
}

// TestC305_NthCallFails lets each call of the provider fail in turn, in making a world,
// using it and closing it: an error is given, and nothing is left.
func TestC305_NthCallFails(t *testing.T) {
	t.Parallel()
	for n := 1; ; n++ {
		p := scripted.New(nil)
		p.FailAt(n, syscall.EIO)
		infos, err := verbs.Devices(p)
		if err != nil {
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("call %d: %v", n, err)
			}
			continue
		}
		w, err := build(infos[0])
		if err != nil {
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("call %d: %v", n, err)
			}
			if p.Open() != 0 || len(p.Violations()) != 0 {
				t.Errorf("call %d: %d objects left, %v", n, p.Open(), p.Violations())
			}
			continue
		}
		errs := 0
		note := func(err error) {
			if err == nil {
				return
			}
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("call %d: %v", n, err)
			}
			errs++
		}
		ctx := p.Device("").Context()
		note(w.qp.PostRecv(verbs.Recv(1, w.mr.SGE(0, 8))))
		note(w.qp.PostSend(verbs.Send(2, w.mr.SGE(0, 8), ib.Signaled)))
		note(w.srq.PostRecv(verbs.Recv(3, w.mr.SGE(0, 8))))
		_, err = w.cq.Arm(ib.NotifyAny)
		note(err)
		ctx.QP(0).CompleteRecv(1, scripted.Received(8), false)
		var dst [8]verbs.WC
		_, err = w.cq.Poll(dst[:])
		note(err)
		_, _, err = w.ch.TryEvent()
		note(err)
		_, _, err = w.dev.Async().TryEvent()
		note(err)
		_, err = w.qp.Query(ib.AttrState)
		note(err)
		note(w.srq.SetLimit(2))
		short, cancel := context.WithTimeout(bg, time.Millisecond)
		_, err = w.cq.Wait(short, dst[:])
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			note(err)
		}
		cancel()
		w.qp.Fail()
		for _, c := range []closer{w.cq, w.qp, w.pd, w.mr, w.mw, w.sqr, w.buf, w.ch, w.srq, w.ah, w.dev} {
			note(c.Close())
		}
		gone(t, p, w.dev)
		if p.Count("") < n {
			if n < 45 {
				t.Errorf("only %d calls were made", n)
			}
			break
		}
	}
}

// TestC087_CloseInFlight: requests of all kinds are outstanding and the peer is active.
// Nothing of the queue pair is given after Close has returned.
func TestC087_CloseInFlight(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for round := range 40 {
		cq, scq := r.cq(64, nil)
		qp, sqp := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 16, MaxRecvWR: 16})
		r.rts(qp)
		for i := range 16 {
			r.send(qp, uint64(i), ib.Signaled)
			r.recv(qp, uint64(i))
		}
		ctx, cancel := context.WithCancel(bg)
		var wg sync.WaitGroup
		var mu sync.Mutex
		closed := false
		wg.Go(func() {
			for ctx.Err() == nil {
				sqp.CompleteRecv(1, scripted.Received(8), false)
				sqp.CompleteSend(1, success)
				runtime.Gosched()
			}
		})
		wg.Go(func() {
			for {
				mu.Lock()
				over := closed
				var dst [3]verbs.WC
				n, err := cq.Poll(dst[:])
				if over && n > 0 || err != nil {
					t.Errorf("round %d: %d completions after Close, %v", round, n, err)
				}
				mu.Unlock()
				if over {
					return
				}
				runtime.Gosched()
			}
		})
		wg.Go(func() {
			for qp.PostRecv(verbs.Recv(1, r.mr.SGE(0, 8))) != net.ErrClosed {
			}
		})
		runtime.Gosched()
		r.ok(qp.Close())
		mu.Lock()
		closed = true
		mu.Unlock()
		cancel()
		wg.Wait()
		// The device's own are dropped when they are polled.
		scq.Push(driver.WC{ID: 1}, false)
		if got := r.poll(cq); len(got) != 0 {
			t.Errorf("given after Close: %v", got)
		}
		r.ok(cq.Close())
	}
}
