//go:build linux && cgo

package ibverbs

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func pointerOf(q driver.CQ) uintptr { return uintptr(unsafe.Pointer(q.(*cq).c.cq)) }

// TestFakeFullLateEvents: an event of a queue that is gone finds nothing, and does not hide
// the next; one that the library drops is no event (P11, P19).
func TestFakeFullLateEvents(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	live := r.cq(0x11_0000_0001, 10)
	dead := must(r.ctx.CreateCQ(driver.CQConfig{Handle: 0x22_0000_0002, Entries: 10, Channel: r.ch}))(t)
	p := pointerOf(dead)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	again := r.cq(0x33_0000_0003, 10) // has the place of the one that is gone
	none := func() {
		t.Helper()
		if h, ok, err := r.ch.Next(); h != 0 || ok || err != nil {
			t.Errorf("%#x, %v, %v", h, ok, err)
		}
	}
	next := func(want uint64) {
		t.Helper()
		if h, ok, err := r.ch.Next(); h != want || !ok || err != nil {
			t.Errorf("%#x, %v, %v; want %#x", h, ok, err, want)
		}
	}
	f.compEvent(p, false)
	if !r.readable(r.ch, 0) {
		t.Error("not readable")
	}
	none()
	f.compEvent(p, true)
	none()
	f.compEvent(p, true)
	f.compEvent(pointerOf(again), false)
	f.compEvent(p, true)
	f.compEvent(pointerOf(live), false)
	next(0x33_0000_0003)
	next(0x11_0000_0001)
	none()
	for range 1000 { // no recursion without end
		f.compEvent(p, true)
	}
	none()
	f.fail("ibv_get_cq_event", syscall.EINTR, 0)
	time.AfterFunc(time.Millisecond, func() { f.fns["ibv_get_cq_event"].err = 0 })
	f.compEvent(pointerOf(live), false)
	next(0x11_0000_0001) // after as many interruptions as there are
	// A queue that was resized is still the same.
	if err := live.(*cq).Resize(100); err != nil || live.Entries() < 100 {
		t.Error(err, live.Entries())
	}
	f.compEvent(pointerOf(live), false)
	next(0x11_0000_0001)
}

// TestFakeFullDeadDescriptors: a descriptor that reports an error and has nothing to read is
// a device that was removed, although the fetch of an event says EAGAIN for ever, as
// kernels before 6.5 do (P46, events that are there come first).
func TestFakeFullDeadDescriptors(t *testing.T) {
	inFake(t, "full")
	for _, hangup := range []bool{false, true} {
		t.Run(map[bool]string{false: "POLLERR", true: "POLLHUP"}[hangup], func(t *testing.T) {
			f := newFake(t, "full")
			r := newRig(t)
			q := r.cq(5, 10)
			f.compEvent(pointerOf(q), false)
			f.asyncEvent(9, 1) // PORT_ACTIVE
			cmch := r.channel()
			if hangup {
				for _, wfd := range []string{"comp_wfd", "async_wfd", "cm_wfd"} {
					f.kill(-1, wfd, true)
				}
				if h, ok, err := r.ch.Next(); h != 5 || !ok || err != nil {
					t.Errorf("%#x, %v, %v", h, ok, err)
				}
				if ev, ok, err := r.ctx.Async().Next(); ev.Type != ib.EventPortActive || ev.Port != 1 || !ok || err != nil {
					t.Errorf("%+v, %v, %v", ev, ok, err)
				}
				r.ctx.gone.Store(false)
			} else {
				for _, n := range []driver.Notifier{r.ch, r.ctx.Async(), cmch} {
					f.kill(must(n.FD())(t), "", false)
				}
			}
			for _, n := range []string{"ibv_get_cq_event", "ibv_get_async_event", "rdma_get_cm_event"} {
				f.fail(n, syscall.EAGAIN, 0)
			}
			for range 3 {
				if _, ok, err := r.ch.Next(); ok || err != driver.ErrDeviceGone {
					t.Errorf("channel: %v, %v", ok, err)
				}
				if _, ok, err := r.ctx.Async().Next(); ok || err != driver.ErrDeviceGone {
					t.Errorf("async: %v, %v", ok, err)
				}
				if _, ok, err := cmch.Next(); ok || err != driver.ErrDeviceGone {
					t.Errorf("cm: %v, %v", ok, err)
				}
			}
			if n := testing.AllocsPerRun(10, func() { r.ch.Next(); r.ctx.Async().Next() }); n != 0 {
				t.Errorf("%v allocations", n)
			}
			if hangup {
				// Closing closes the descriptors that were made invalid here.
				r.ctx.gone.Store(true)
			}
		})
	}
}

// TestFakeFullFetchFails: EIO of a fetch is the end of the device, others are errors.
func TestFakeFullFetchFails(t *testing.T) {
	f := newFake(t, "full")
	for errno, want := range map[syscall.Errno]error{syscall.EIO: driver.ErrDeviceGone, syscall.EINVAL: syscall.EINVAL, syscall.ENOMEM: syscall.ENOMEM} {
		r := newRig(t)
		q := r.cq(5, 10)
		f.compEvent(pointerOf(q), false)
		f.asyncEvent(9, 1)
		f.fail("ibv_get_cq_event", errno, 0)
		f.fail("ibv_get_async_event", errno, 0)
		if _, ok, err := r.ch.Next(); ok || err != want {
			t.Errorf("%v: %v, %v", errno, ok, err)
		}
		if _, ok, err := r.ctx.Async().Next(); ok || err != want {
			t.Errorf("%v: %v, %v", errno, ok, err)
		}
		f.fail("ibv_get_cq_event", 0, 0)
		f.fail("ibv_get_async_event", 0, 0)
	}
}

// TestFakeFullAsync: events about objects, ports, the device, about objects of others, of
// types that are not known, and the same end more than once.
func TestFakeFullAsync(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	q := r.cq(0x11_0000_0001, 10)
	v := r.qp(0x22_0000_0002, ib.RC, q, nil).(*qp)
	s := must(r.pd.CreateSRQ(driver.SRQConfig{Handle: 0x33_0000_0003, MaxWR: 4, MaxSGE: 1}))(t).(*srq)
	r.closing("srq", s.Close)
	foreign := r.qp(0x44_0000_0004, ib.RC, q, nil).(*qp)
	// On a context of the connection manager another library may have made it.
	*(*uintptr)(unsafe.Add(unsafe.Pointer(foreign.c.qp), 8)) = 0x7f1234567890
	alike := r.qp(0x77_0000_0007, ib.RC, q, nil).(*qp) // and its context may be one of ours
	*(*uintptr)(unsafe.Add(unsafe.Pointer(alike.c.qp), 8)) = *(*uintptr)(unsafe.Add(unsafe.Pointer(v.c.qp), 8))
	pa := uintptr(unsafe.Pointer(alike.c.qp))
	// A queue pair at the address of an older one: the library gives the context of that.
	older := must(r.pd.CreateQP(driver.QPConfig{Handle: 0x55_0000_0005, Type: ib.RC, SendCQ: q, RecvCQ: q}))(t).(*qp)
	key := *(*uintptr)(unsafe.Add(unsafe.Pointer(older.c.qp), 8))
	if err := older.Close(); err != nil {
		t.Fatal(err)
	}
	newer := r.qp(0x66_0000_0006, ib.RC, q, nil).(*qp)
	*(*uintptr)(unsafe.Add(unsafe.Pointer(newer.c.qp), 8)) = key
	pn := uintptr(unsafe.Pointer(newer.c.qp))
	pq, pv, ps, pf := pointerOf(q), uintptr(unsafe.Pointer(v.c.qp)), uintptr(unsafe.Pointer(s.c.srq)), uintptr(unsafe.Pointer(foreign.c.qp))
	async := r.ctx.Async()
	acked, fetched := f.calls("ibv_ack_async_event"), f.calls("ibv_get_async_event")
	for _, c := range []struct {
		typ     int32
		element uintptr
		want    driver.AsyncEvent
	}{
		{0, pq, driver.AsyncEvent{Type: ib.EventCQErr, Handle: 0x11_0000_0001}},
		{1, pv, driver.AsyncEvent{Type: ib.EventQPFatal, Handle: 0x22_0000_0002}},
		{4, pv, driver.AsyncEvent{Type: ib.EventCommEst, Handle: 0x22_0000_0002}},
		{16, pv, driver.AsyncEvent{Type: ib.EventQPLastWQEReached, Handle: 0x22_0000_0002}},
		{16, pv, driver.AsyncEvent{Type: ib.EventQPLastWQEReached, Handle: 0x22_0000_0002}},
		{15, ps, driver.AsyncEvent{Type: ib.EventSRQLimitReached, Handle: 0x33_0000_0003}},
		{1, pf, driver.AsyncEvent{Type: ib.EventQPFatal}},
		{1, pa, driver.AsyncEvent{Type: ib.EventQPFatal}},
		{1, pn, driver.AsyncEvent{Type: ib.EventQPFatal}},
		{10, 2, driver.AsyncEvent{Type: ib.EventPortErr, Port: 2}},
		{18, 1, driver.AsyncEvent{Type: ib.EventGIDChange, Port: 1}},
		{19, 0, driver.AsyncEvent{Type: 19}},
		{77, 1, driver.AsyncEvent{Type: 77, Port: 1}},
		{8, 0, driver.AsyncEvent{Type: ib.EventDeviceFatal}},
		{8, 0, driver.AsyncEvent{Type: ib.EventDeviceFatal}},
		{10, 1, driver.AsyncEvent{Type: ib.EventPortErr, Port: 1}},
	} {
		f.asyncEvent(c.typ, c.element)
		if !r.readable(async, 0) {
			t.Errorf("type %d: not readable", c.typ)
		}
		if ev, ok, err := async.Next(); ev != c.want || !ok || err != nil {
			t.Errorf("type %d: %+v, %v, %v; want %+v", c.typ, ev, ok, err, c.want)
		}
	}
	if _, ok, err := async.Next(); ok || err != driver.ErrDeviceGone {
		t.Errorf("after the last: %v, %v", ok, err)
	}
	if got, want := f.calls("ibv_ack_async_event")-acked, f.calls("ibv_get_async_event")-fetched; got != want || got != 16 {
		t.Errorf("%d acknowledged, %d fetched", got, want)
	}
}

// TestFakeFullAcks takes, leaves and makes events, and destroys their objects, in an order
// that a seed decides. The fake counts what would make a destroy wait (P1, P3).
func TestFakeFullAcks(t *testing.T) {
	f := newFake(t, "full", "old")
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("VERBENA_SEED"); s != "" {
		seed = must(strconv.ParseUint(s, 10, 64))(t)
	}
	t.Logf("VERBENA_SEED=%d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t)
	type entry struct {
		q driver.CQ
		v driver.QP
	}
	var live []entry
	handles := map[uint64]bool{}
	fetched := 0
	take := func() bool {
		h, ok, err := r.ch.Next()
		if err != nil || ok && !handles[h] {
			t.Fatalf("%#x, %v, %v", h, ok, err)
		}
		if ok {
			fetched++
		}
		return ok
	}
	takeAsync := func() bool {
		_, ok, err := r.ctx.Async().Next()
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	end := func(i int) {
		e := live[i]
		live = append(live[:i], live[i+1:]...)
		for _, c := range []func() error{e.v.Close, e.q.Close} {
			if err := f.within("close", c); err != nil {
				t.Fatal(err)
			}
		}
		delete(handles, e.q.(*cq).handle())
	}
	for i := range 5000 {
		switch n := rnd.IntN(100); {
		case len(live) < 2 || n < 4 && len(live) < 20:
			h := uint64(i+1)<<32 | uint64(len(live)+1)
			q := must(r.ctx.CreateCQ(driver.CQConfig{Handle: h, Entries: 200, Channel: r.ch}))(t)
			live = append(live, entry{q, must(r.pd.CreateQP(driver.QPConfig{Handle: h, Type: ib.RC, SendCQ: q, RecvCQ: q}))(t)})
			handles[h] = true
		case n < 7:
			end(rnd.IntN(len(live)))
		case n < 50: // an event, or some hundreds
			q := live[rnd.IntN(len(live))].q
			for range 1 + rnd.IntN(3)*rnd.IntN(60) {
				f.compEvent(pointerOf(q), false)
			}
		case n < 60:
			f.asyncEvent(4, uintptr(unsafe.Pointer(live[rnd.IntN(len(live))].v.(*qp).c.qp)))
		case n < 70:
			f.asyncEvent(0, pointerOf(live[rnd.IntN(len(live))].q))
		case n < 90:
			for range rnd.IntN(100) {
				if !take() {
					break
				}
			}
		default:
			takeAsync()
		}
		if i%16 == 0 { // the pipes of the fake are no larger
			for take() {
			}
			for takeAsync() {
			}
		}
	}
	for len(live) > 0 {
		end(0)
	}
	if fetched < 1000 {
		t.Errorf("only %d events", fetched)
	}
}

// handle gives what the queue was made with.
func (q *cq) handle() uint64 { return uint64(q.c.handle) }

// TestFakeFullChannelInUse: errors of destroying are told, not hidden (P7).
func TestFakeFullChannelInUse(t *testing.T) {
	newFake(t, "full")
	r := newRig(t)
	q := r.cq(1, 10)
	r.qp(1, ib.RC, q, nil)
	for i, c := range []func() error{q.Close, r.ch.Close, r.pd.Close} {
		if err := c(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%d: %v", i, err)
		}
	}
}
