package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func (r *rig) event() verbs.AsyncEvent {
	r.Helper()
	ev, ok, err := r.dev.Async().TryEvent()
	if !ok || err != nil {
		r.Fatalf("no event: %v, %v", ok, err)
	}
	return ev
}

func TestC185_ObjectEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, scq := r.ready(verbs.QPConfig{})
	for _, typ := range []ib.EventType{ib.EventCommEst, ib.EventSQDrained, ib.EventPathMig, ib.EventQPLastWQEReached} {
		sqp.Event(typ)
		if ev := r.event(); ev.Type != typ || ev.QP != qp || ev.Device != r.dev || ev.CQ != nil || ev.Port != 1 {
			t.Errorf("%+v", ev)
		}
		if qp.State() != ib.StateRTS || qp.Err() != nil {
			t.Errorf("%v ended the queue pair", typ)
		}
	}
	// C-186, and what is about a queue of another kind of object.
	r.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventCQErr, Handle: scq.Handle(), Port: 1})
	if ev := r.event(); ev.CQ != cq || ev.QP != nil {
		t.Errorf("%+v", ev)
	}
	if qp.State() != ib.StateError || qp.Err() == nil {
		t.Error("a CQ_ERR does not end the queue pairs")
	}
	r.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventCQErr, Handle: scq.Handle(), Port: 1}) // again
	r.event()
	for _, typ := range []ib.EventType{ib.EventQPFatal, ib.EventQPReqErr, ib.EventQPAccessErr} {
		qp, sqp, _, _ := r.ready(verbs.QPConfig{})
		sqp.Event(typ)
		sqp.Event(typ)
		for range 2 {
			if ev := r.event(); ev.QP != qp {
				t.Errorf("%+v", ev)
			}
		}
		if qp.State() != ib.StateError || qp.Err() != verbs.EventError(typ) || verbs.EventError(typ).Type() != typ {
			t.Errorf("%v: %v, %v", typ, qp.State(), qp.Err())
		}
	}
}

func TestC187_Readers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		const events = 200
		for i := range events {
			r.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventGIDChange, Port: i})
		}
		ctx, cancel := context.WithCancel(bg)
		var mu sync.Mutex
		seen := map[int]int{}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for ev, err := range r.dev.Async().Events(ctx) {
					if err != nil {
						r.is(err, context.Canceled, "Events")
						return
					}
					mu.Lock()
					seen[ev.Port]++
					mu.Unlock()
				}
			})
		}
		synctest.Wait()
		for i := range events {
			r.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventGIDChange, Port: events + i})
			if i%50 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		for i := range 2 * events {
			if seen[i] != 1 {
				t.Errorf("event %d came %d times", i, seen[i])
			}
		}
	})
}

// TestC187_Close: a private device is closed while somebody reads.
func TestC187_Close(t *testing.T) {
	t.Parallel()
	for _, fd := range []bool{false, true} {
		r := newRig(t, &scripted.Config{Descriptors: fd})
		private, err := r.dev.Info().OpenPrivate()
		r.ok(err)
		done := make(chan error)
		for range 3 {
			go func() {
				_, err := private.Async().Event(bg)
				done <- err
			}()
		}
		time.Sleep(2 * time.Millisecond)
		r.ok(private.Close())
		for range 3 {
			r.is(<-done, net.ErrClosed, "Event")
		}
		_, _, err = private.Async().TryEvent()
		r.is(err, net.ErrClosed, "TryEvent")
		_, err = private.Async().FD()
		r.is(err, net.ErrClosed, "FD")
	}
}

// TestC188_CloseFromTheHandler: objects are closed by who handles their event.
func TestC188_CloseFromTheHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	async := r.dev.Async()
	qp, sqp, cq, scq := r.ready(verbs.QPConfig{})
	handle := scq.Handle()
	var order []string
	cancel := async.Observe(func(ev verbs.AsyncEvent) {
		if ev.QP != nil {
			order = append(order, "observer")
			r.ok(ev.QP.Close())
		}
		if ev.CQ != nil {
			r.ok(ev.CQ.Close())
		}
	})
	sqp.Event(ib.EventCommEst)
	sqp.Event(ib.EventQPFatal)
	r.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventCQErr, Handle: handle})
	r.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventCQErr, Handle: handle})
	if ev := r.event(); ev.QP != qp {
		t.Errorf("%+v", ev)
	}
	order = append(order, "reader")
	// What comes about a closed object has no object.
	if ev := r.event(); ev.Type != ib.EventQPFatal || ev.QP != nil {
		t.Errorf("%+v", ev)
	}
	if ev := r.event(); ev.CQ != cq {
		t.Errorf("%+v", ev)
	}
	if ev := r.event(); ev.CQ != nil {
		t.Errorf("%+v", ev)
	}
	if fmt.Sprint(order) != "[observer reader]" {
		t.Errorf("order %v", order)
	}
	cancel()
	cancel()
	sqp2 := func() *scripted.QP { _, s, _, _ := r.ready(verbs.QPConfig{}); return s }()
	sqp2.Event(ib.EventCommEst)
	r.event()
	if len(order) != 2 {
		t.Error("called after cancel")
	}
	// A handle of another generation, and one that never was.
	for _, h := range []uint64{handle, 0, ^uint64(0), 1 << 40} {
		for _, typ := range []ib.EventType{ib.EventCQErr, ib.EventQPFatal, ib.EventSRQErr} {
			r.ctx.PostAsync(driver.AsyncEvent{Type: typ, Handle: h})
			if ev := r.event(); ev.CQ != nil || ev.QP != nil || ev.SRQ != nil {
				t.Errorf("handle %#x: %+v", h, ev)
			}
		}
	}
}

// TestObserveCloses: an observer may close the device.
func TestObserveCloses(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	private, err := r.dev.Info().OpenPrivate()
	r.ok(err)
	private.Async().Observe(func(verbs.AsyncEvent) { r.ok(private.Close()) })
	r.p.Device("").Context().PostAsync(driver.AsyncEvent{Type: ib.EventPortErr})
	if ev, err := private.Async().Event(bg); err != nil || ev.Type != ib.EventPortErr {
		t.Error(ev, err)
	}
}

func TestC190_UnknownEvent(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.ctx.PostAsync(driver.AsyncEvent{Type: 200, Handle: 5, Port: 1})
	r.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventPortActive, Port: 1})
	if ev := r.event(); ev.Type != 200 || ev.QP != nil {
		t.Errorf("%+v", ev)
	}
	if ev := r.event(); ev.Type != ib.EventPortActive {
		t.Errorf("%+v", ev)
	}
}

// TestC191_Removal: waiters are woken, posted work is completed by the library, calls say
// that the device is gone, nothing hangs in Close, and Open gives a new one.
func TestC191_Removal(t *testing.T) {
	t.Parallel()
	for _, fd := range []bool{false, true} {
		for _, first := range []string{"event", "poll", "post", "query"} {
			t.Run(fmt.Sprint(first, ", descriptor ", fd), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, &scripted.Config{Descriptors: fd})
				qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
				r.recv(qp, 1)
				r.recv(qp, 2)
				r.send(qp, 3, 0)
				idle, _ := r.cq(4, nil)
				ch, _ := r.channel()
				done := make(chan error, 4)
				go func() { _, err := idle.Next(bg); done <- err }()
				go func() { _, err := ch.Event(bg); done <- err }()
				time.Sleep(2 * time.Millisecond)
				sqp.CompleteRecv(1, scripted.Received(8), false)
				r.p.Device("").Remove()
				switch first {
				case "event":
					ev, err := r.dev.Async().Event(bg)
					if err != nil || ev.Type != ib.EventDeviceFatal {
						t.Error(ev, err)
					}
				case "poll":
					var dst [1]verbs.WC
					if n, err := cq.Poll(dst[:]); n != 1 || err != nil || dst[0].Status != success {
						t.Error(dst[0], err)
					}
				case "post":
					r.is(qp.PostRecv(verbs.Recv(9, r.mr.SGE(0, 8))), verbs.ErrDeviceGone, "post")
				case "query":
					_, err := r.dev.Port(1)
					r.is(err, verbs.ErrDeviceGone, "query")
				}
				for range 2 {
					r.is(<-done, verbs.ErrDeviceGone, "waiter")
				}
				got := map[uint64]ib.Status{}
				for {
					var dst [8]verbs.WC
					n, err := cq.Poll(dst[:])
					if err != nil {
						r.is(err, verbs.ErrDeviceGone, "poll in the end")
						break
					}
					for _, wc := range dst[:n] {
						got[wc.ID] = wc.Status
					}
				}
				want := map[uint64]ib.Status{1: success, 2: flush, 3: flush}
				if first == "poll" {
					delete(want, 1)
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("completions %v, want %v", got, want)
				}
				r.is(qp.Err(), verbs.ErrDeviceGone, "cause")
				if qp.State() != ib.StateError {
					t.Errorf("state %v", qp.State())
				}
				_, err := cq.Next(bg)
				r.is(err, verbs.ErrDeviceGone, "wait in the end")
				_, err = r.pd.Alloc(64, 0)
				r.is(err, verbs.ErrDeviceGone, "register")
				for {
					_, err := r.dev.Async().Event(bg)
					if err != nil {
						r.is(err, verbs.ErrDeviceGone, "asynchronous events in the end")
						break
					}
				}
				if _, err := verbs.Open(r.p, "fake0"); !errors.Is(err, verbs.ErrNoDevice) {
					t.Errorf("open: %v", err)
				}
				start := time.Now()
				r.ok(qp.Close())
				if d := time.Since(start); d > 500*time.Millisecond {
					t.Errorf("Close took %v", d)
				}
			})
		}
	}
}

// TestNewDeviceAfterRemoval: another device of that name comes.
func TestNewDeviceAfterRemoval(t *testing.T) {
	t.Parallel()
	p := &replaceable{Provider: scripted.New(nil)}
	old, err := verbs.Open(p, "")
	if err != nil {
		t.Fatal(err)
	}
	p.Provider.Device("").Remove()
	if _, err := old.Attr(); !errors.Is(err, verbs.ErrDeviceGone) {
		t.Fatal(err)
	}
	p.Provider = scripted.New(nil)
	dev, err := verbs.Open(p, "")
	if err != nil || dev == old {
		t.Fatal(dev == old, err)
	}
	if _, err := dev.Attr(); err != nil {
		t.Error(err)
	}
	again, err := verbs.Open(p, "")
	if again != dev || err != nil {
		t.Error("another device", err)
	}
}

type replaceable struct{ *scripted.Provider }

func TestNilAsync(t *testing.T) {
	t.Parallel()
	var d *verbs.Device
	a := d.Async()
	_, err := a.Event(bg)
	if !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	_, _, err = a.TryEvent()
	if !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if _, err := a.FD(); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	a.Observe(nil)()
}
