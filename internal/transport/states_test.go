package transport

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// C-065, C-066, C-067: capabilities.
func TestNew(t *testing.T) {
	t.Parallel()
	table := mem.NewTable(func() uint32 { return 1 })
	most := driver.Caps{MaxSendWR: MaxWR, MaxRecvWR: MaxWR, MaxSendSGE: 1, MaxRecvSGE: 1}
	for _, c := range []driver.Caps{{}, {MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
		{MaxSendWR: 100, MaxRecvWR: 100, MaxSendSGE: 3, MaxRecvSGE: 3, MaxInline: 100}, most,
		{MaxSendWR: 2, MaxSendSGE: MaxSGE, MaxInline: MaxInline}} {
		q, err := New(Config{QPN: 5, Type: ib.RC, Caps: c, Memory: table})
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if a := q.Query(); a.State != ib.StateReset || a.Cap != c {
			t.Errorf("%+v: query says %+v", c, a)
		}
		if n := len(q.SendSlots()); n != c.MaxSendWR {
			t.Errorf("%+v: %d places", c, n)
		}
		if n := len(q.RecvSlots()); n != c.MaxRecvWR {
			t.Errorf("%+v: %d receive places", c, n)
		}
	}
	for field, set := range map[string]func(c *driver.Caps) *int{
		"MaxSendWR":  func(c *driver.Caps) *int { return &c.MaxSendWR },
		"MaxRecvWR":  func(c *driver.Caps) *int { return &c.MaxRecvWR },
		"MaxSendSGE": func(c *driver.Caps) *int { return &c.MaxSendSGE },
		"MaxRecvSGE": func(c *driver.Caps) *int { return &c.MaxRecvSGE },
		"MaxInline":  func(c *driver.Caps) *int { return &c.MaxInline },
	} {
		for _, v := range []int{-1, MaxWR + 1} {
			c := driver.Caps{}
			*set(&c) = v
			_, err := New(Config{Type: ib.RC, Caps: c, Memory: table})
			var e *ValueError
			if !errors.As(err, &e) || e.Field != field || !strings.Contains(err.Error(), field) {
				t.Errorf("%s %d: %v", field, v, err)
			}
		}
	}
	for _, typ := range []ib.QPType{0, ib.UC, ib.UD, ib.RawPacket, ib.XRCSend} {
		if _, err := New(Config{Type: typ, Memory: table}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v: %v", typ, err)
		}
	}
}

// C-075 to C-079: every value is checked before any is taken.
func TestAttributeValues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		field string
		mask  ib.QPAttrMask
		good  []any
		bad   []any
	}{
		{"PathMTU", ib.AttrPathMTU, []any{ib.MTU256, ib.MTU4096}, []any{ib.MTU(0), ib.MTU(6), ib.MTU(255)}},
		{"RQPSN", ib.AttrRQPSN, []any{ib.PSN(0), ib.PSN(0xffffff)}, []any{ib.PSN(0x1000000)}},
		{"SQPSN", ib.AttrSQPSN, []any{ib.PSN(0), ib.PSN(0xffffff)}, []any{ib.PSN(0x1000000)}},
		{"DestQPN", ib.AttrDestQPN, []any{ib.QPN(0), ib.QPN(0xffffff)}, []any{ib.QPN(0x1000000)}},
		{"MaxRDAtomic", ib.AttrMaxRDAtomic, []any{0, 3, 128}, []any{-1, 129, 255, 1 << 30}},
		{"MaxDestRDAtomic", ib.AttrMaxDestRDAtomic, []any{0, 3, 128}, []any{-1, 129, 255, 1 << 30}},
		{"RetryCount", ib.AttrRetryCount, []any{0, 7}, []any{-1, 8}},
		{"RNRRetry", ib.AttrRNRRetry, []any{0, 7}, []any{-1, 8}},
		{"Timeout", ib.AttrTimeout, []any{time.Duration(0), ib.AckTimeoutDuration(31), ib.AckTimeoutDuration(1)},
			[]any{time.Duration(-1), ib.AckTimeoutDuration(31) + 1}},
		{"MinRNRTimer", ib.AttrMinRNRTimer, []any{10 * time.Microsecond, 655360 * time.Microsecond},
			[]any{time.Duration(-1), 655361 * time.Microsecond}},
		{"State", ib.AttrState, nil, []any{ib.StateSQE, ib.QPState(9)}},
		{"CurState", ib.AttrCurState, []any{ib.StateRTS}, []any{ib.StateRTR, ib.StateReset}},
		{"Cap", ib.AttrCap, nil, []any{driver.Caps{}}},
	} {
		x := newScript(t, nil)
		try := func(v any, extra ib.QPAttrMask) error {
			a := driver.QPAttr{Access: ib.RemoteRead, QKey: 77}
			reflect.ValueOf(&a).Elem().FieldByName(c.field).Set(reflect.ValueOf(v))
			return x.a.q.Modify(x.now, &a, c.mask|extra)
		}
		for _, v := range c.bad {
			before := x.a.q.Query()
			err := try(v, ib.AttrAccess|ib.AttrQKey)
			var e *ValueError
			if !errors.As(err, &e) || e.Attr != c.mask || e.Field != c.field {
				t.Errorf("%s %v: %v", c.field, v, err)
			}
			if after := x.a.q.Query(); after != before {
				t.Errorf("%s %v: changed\n%+v to\n%+v", c.field, v, before, after)
			}
		}
		for _, v := range c.good {
			if err := try(v, 0); err != nil {
				t.Errorf("%s %v: %v", c.field, v, err)
			}
			if got := reflect.ValueOf(x.a.q.Query()).FieldByName(c.field).Interface(); got != v {
				t.Errorf("%s: query says %v, want %v", c.field, got, v)
			}
		}
	}
}

// RTR cannot be reached without an MTU, whatever the caller forgot.
func TestRTRNeedsMTU(t *testing.T) {
	t.Parallel()
	q, err := New(Config{QPN: 1, Type: ib.RC, Memory: mem.NewTable(func() uint32 { return 1 })})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Modify(0, &driver.QPAttr{State: ib.StateRTR}, ib.AttrState); err == nil || q.State() != ib.StateReset {
		t.Errorf("state %v, %v", q.State(), err)
	}
}

// C-088: query gives what was set; times are rounded up to what the wire can say.
func TestQuery(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	in := driver.QPAttr{
		QKey: 3, Access: ib.RemoteRead, AH: driver.AHAttr{FlowLabel: 9, Global: true}, AltAH: driver.AHAttr{HopLimit: 3},
		PKeyIndex: 0, AltPKeyIndex: 2, MaxRDAtomic: 9, MaxDestRDAtomic: 11, MinRNRTimer: 700 * time.Microsecond,
		Timeout: 10 * time.Millisecond, AltTimeout: time.Second, Port: 1, AltPort: 1, RetryCount: 2, RNRRetry: 5, RateLimitKbps: 6,
		PathMTU: ib.MTU512, RQPSN: 4, SQPSN: 5, DestQPN: 6, PathMigState: 1,
	}
	all := ib.AttrQKey | ib.AttrAccess | ib.AttrAV | ib.AttrAltPath | ib.AttrPKeyIndex | ib.AttrMaxRDAtomic | ib.AttrMaxDestRDAtomic |
		ib.AttrMinRNRTimer | ib.AttrTimeout | ib.AttrPort | ib.AttrRetryCount | ib.AttrRNRRetry | ib.AttrRateLimit | ib.AttrPathMTU |
		ib.AttrRQPSN | ib.AttrSQPSN | ib.AttrDestQPN | ib.AttrPathMigState
	x.a.modify(in, all)
	want := in
	want.MinRNRTimer, want.Timeout = 960*time.Microsecond, 4096*time.Nanosecond<<12
	want.State, want.CurState, want.Cap = ib.StateRTS, ib.StateRTS, x.a.q.cfg.Caps
	if got := x.a.q.Query(); got != want {
		t.Errorf("query says\n%+v, want\n%+v", got, want)
	}
	x.a.state(ib.StateReset)
	if got, want := x.a.q.Query(), (driver.QPAttr{Cap: x.a.q.cfg.Caps}); got != want {
		t.Errorf("after RESET query says\n%+v, want\n%+v", got, want)
	}
}

// C-083: everything that is posted is flushed, in order, unsignaled requests too. C-081:
// what is posted afterwards as well.
func TestFlush(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{window: 1})
	for i := range uint64(3) {
		x.a.recv(i, 0, 8)
		x.a.fill(&req{id: i, op: ib.OpWrite, data: "x", silent: i != 1})
	}
	x.a.pump()
	x.a.flights = nil
	x.a.state(ib.StateError)
	for i := range uint64(3) {
		x.a.wantDone(i, ib.StatusWRFlush)
		x.a.wantRecv(i, ib.StatusWRFlush, 0)
	}
	x.a.post(req{id: 7, op: ib.OpSend, silent: true})
	x.a.recv(8, 0, 8)
	x.a.wantDone(7, ib.StatusWRFlush)
	if c := x.a.wantRecv(8, ib.StatusWRFlush, 0); c.Opcode != ib.WCRecv {
		t.Errorf("%s", doneString(c))
	}
	x.a.wantBroken()
	x.a.state(ib.StateError) // again
}

// A receive that is half full when the queue pair fails is flushed like the others.
func TestFlushInMessage(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	x.b.recv(1, 0, 1000)
	x.a.post(req{id: 1, op: ib.OpSend, sgl: []driver.SGE{x.a.sge(0, 1000)}})
	x.a.wantPacket(wire.RCSendFirst, 0, "")
	x.deliver()
	x.b.state(ib.StateError)
	x.b.wantRecv(1, ib.StatusWRFlush, 0)
	x.settle()
	x.a.wantDone(1, ib.StatusRetryExc)
}

// C-082: RESET forgets without completions, and the queue pair carries traffic again.
func TestReset(t *testing.T) {
	t.Parallel()
	for _, through := range []ib.QPState{ib.StateRTS, ib.StateError} {
		x := newScript(t, nil)
		x.b.recv(1, 0, 8)
		x.a.post(req{id: 1, op: ib.OpWrite, sgl: []driver.SGE{x.a.sge(0, 8000)}}, req{id: 2, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 8000)}})
		x.a.flights = nil
		if through == ib.StateError {
			x.a.state(ib.StateError)
			x.a.wantDone(1, ib.StatusWRFlush)
			x.a.wantDone(2, ib.StatusWRFlush)
		}
		for _, e := range []*end{x.a, x.b} {
			e.state(ib.StateReset)
			if _, ok := e.q.Deadline(); ok {
				t.Error("a timer runs in RESET")
			}
			e.psn += 77
		}
		x.a.connect(&setup{}, false)
		x.b.connect(&setup{}, false)
		x.b.recv(3, 0, 8)
		x.a.post(req{id: 3, op: ib.OpSend, data: "again"}, req{id: 4, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 800)}})
		x.run()
		x.a.wantDone(3, ib.StatusSuccess)
		x.a.wantDone(4, ib.StatusSuccess)
		x.b.wantRecv(3, ib.StatusSuccess, 5)
	}
}

// §10.3.1.5: SQD finishes what was started, starts nothing, says when it is done, and
// RTS goes on by itself.
func TestDrain(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{window: 2 * (256 + packetOverhead)})
	for i := range uint64(3) {
		x.a.fill(&req{id: i, op: ib.OpWrite, sgl: []driver.SGE{x.a.sge(0, 1000)}})
	}
	x.a.pump()
	x.a.modify(driver.QPAttr{State: ib.StateSQD, SQDNotify: true}, ib.AttrState|ib.AttrSQDNotify)
	if a := x.a.q.Query(); !a.SQDraining || a.State != ib.StateSQD {
		t.Errorf("query says %+v", a)
	}
	x.a.wantPacket(wire.RCWriteFirst, 0, "")
	x.drop() // it even recovers from loss
	x.settle()
	x.a.wantDone(0, ib.StatusSuccess)
	x.a.wantEvent(ib.EventSQDrained)
	if a := x.a.q.Query(); a.SQDraining {
		t.Errorf("query says %+v", a)
	}
	x.a.send(3, "posted meanwhile")
	x.a.wantSilence()
	// The peer's requests are answered in SQD.
	x.b.post(req{id: 9, op: ib.OpWrite, data: "x"})
	x.run()
	x.b.wantDone(9, ib.StatusSuccess)
	x.b.recv(1, 0, 100)
	x.a.state(ib.StateRTS)
	x.run()
	for i := range uint64(3) {
		x.a.wantDone(i+1, ib.StatusSuccess)
	}
	x.b.wantRecv(1, ib.StatusSuccess, 16)

	// With nothing to do the event comes at once; without the wish for it, never.
	x.a.state(ib.StateSQD)
	x.a.wantEvent(ib.EventSQDrained)
	x.a.state(ib.StateRTS)
	x.a.modify(driver.QPAttr{State: ib.StateSQD}, ib.AttrState|ib.AttrSQDNotify)
}

// C-112, C-185: a queue pair in RTR executes, and tells once that the peer is there. It
// sends nothing of its own.
func TestRTR(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{stayRTR: true})
	x.b.recv(1, 0, 8)
	x.a.post(req{id: 1, op: ib.OpSend, data: "x"}, req{id: 2, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 8)}})
	x.run()
	x.b.wantEvent(ib.EventCommEst)
	x.b.wantRecv(1, ib.StatusSuccess, 1)
	x.a.wantDone(1, ib.StatusSuccess)
	x.a.wantDone(2, ib.StatusSuccess)
	x.b.forge(wire.Packet{Opcode: wire.RCAcknowledge, PSN: 5})
	if x.b.q.Stats().Drops[DropState] != 1 {
		t.Error("a response in RTR is not dropped")
	}
}

// C-134, packets for other states are dropped.
func TestDeafStates(t *testing.T) {
	t.Parallel()
	for _, s := range []ib.QPState{ib.StateReset, ib.StateInit, ib.StateError} {
		x := newScript(t, nil)
		if s == ib.StateInit {
			x.b.state(ib.StateReset)
		}
		x.b.state(s)
		x.b.q.Congested(x.now)
		x.a.post(req{id: 1, op: ib.OpWrite, data: "x"})
		x.settle()
		x.a.wantDone(1, ib.StatusRetryExc)
	}
}

// An acknowledgement that is owed when the queue pair is closed is still sent: the
// message was delivered. Not so for what comes after an unanswered READ.
func TestAckOnClose(t *testing.T) {
	t.Parallel()
	for _, withRead := range []bool{false, true} {
		x := newScript(t, nil)
		x.b.recv(1, 0, 8)
		x.b.recv(2, 0, 8)
		rs := []req{{id: 1, op: ib.OpSend, data: "x"}}
		if withRead {
			rs = append(rs, req{id: 3, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 8)}}, req{id: 2, op: ib.OpSend, data: "x"})
		}
		x.a.post(rs...)
		for _, f := range x.a.flights {
			x.b.q.Receive(x.now, f.packet())
		}
		x.a.flights = nil
		x.b.state(ib.StateError)
		x.b.wantRecv(1, ib.StatusSuccess, 1)
		if withRead {
			x.b.wantRecv(2, ib.StatusSuccess, 1)
		} else {
			x.b.wantRecv(2, ib.StatusWRFlush, 1)
		}
		x.b.wantAck(0, wire.AckNoLimit)
		x.deliver()
		x.a.wantDone(1, ib.StatusSuccess)
		x.b.wantSilence()
		x.settle()
		if withRead {
			x.a.wantDone(3, ib.StatusRetryExc)
			x.a.wantDone(2, ib.StatusWRFlush)
		}
	}
}

// Depths that change in use: more READs at a time, and other numbers of resources, of
// which the youngest are kept.
func TestDepthsInUse(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{depth: 1, destDepth: 8})
	for i := range uint64(6) {
		x.a.fill(&req{id: i, op: ib.OpFetchAdd, swap: 1, sgl: []driver.SGE{x.a.sge(0, 8)}})
	}
	x.a.pump()
	if n := len(x.a.flights); n != 1 {
		t.Errorf("%d atomics, want 1", n)
	}
	x.a.modify(driver.QPAttr{MaxRDAtomic: 5}, ib.AttrMaxRDAtomic)
	if n := len(x.a.flights); n != 5 {
		t.Errorf("%d atomics, want 5", n)
	}
	atomics := x.a.flights
	x.run()
	for i := range uint64(6) {
		x.a.wantDone(i, ib.StatusSuccess)
	}
	for _, size := range []int{3, 2, 128, 2} {
		x.b.modify(driver.QPAttr{MaxDestRDAtomic: size}, ib.AttrMaxDestRDAtomic)
		for i, f := range atomics {
			x.give(f)
			if i < 6-min(size, 3) && size != 128 || i < 4 && size == 128 {
				x.b.wantSilence()
				continue
			}
			if p := x.b.wantResponse(wire.RCAtomicAck, i, wire.AckNoLimit); p.AtomicAck != uint64(i) {
				t.Errorf("atomic %d gave %d", i, p.AtomicAck)
			}
			x.drop()
		}
	}
}

// A READ that is half answered when the queue pair is closed stays so: nothing after it
// is acknowledged.
func TestCloseInResponse(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	x.b.out.Max = MaxPacket
	x.b.recv(1, 0, 8)
	x.a.post(req{id: 1, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 10000)}}, req{id: 2, op: ib.OpSend, data: "x"})
	for _, f := range x.a.flights {
		x.b.q.Receive(x.now, f.packet())
	}
	x.a.flights = nil
	x.b.out.Buf, x.b.out.Ends = x.b.out.Buf[:0], x.b.out.Ends[:0]
	if !x.b.q.Transmit(x.now, &x.b.out) || len(x.b.out.Ends) == 0 {
		t.Fatal("all of the response fits, or nothing")
	}
	x.b.state(ib.StateError)
	x.b.wantSilence()
	x.b.wantRecv(1, ib.StatusSuccess, 1)
	x.settle()
	x.a.wantDone(1, ib.StatusRetryExc)
	x.a.wantBroken(2)
}
