package rdmatest

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area G, second part: retries and their limits.
func areaRCRetry() []check {
	return []check{
		{"C-129_NoRNRRetry", 0, noRNRRetry},
		{"C-130_RNRRetries", 0, rnrRetries},
		{"C-130_ReceiveInTime", 0, receiveInTime},
		{"C-131_RNRForEver", Patience, rnrForEver},
		{"C-131_LongOutage", Patience, rnrLongOutage},
		{"C-132_DefaultRNRTimer", VirtualTime, defaultRNRTimer},
		{"C-134_PeerDoesNotAnswer", 0, peerDoesNotAnswer},
		{"C-134_PeerCutOff", Faults | VirtualTime, peerCutOff},
		{"C-135_SevenRetries", Faults | VirtualTime, sevenRetries},
		{"C-136_NoTimeout", Faults | VirtualTime, noTimeout},
		{"C-137_NumberTooHigh", 0, func(t *tb) { numberThatDoesNotMatch(t, 5, "C-137/high", "C-137/high-upper") }},
		{"C-137_NumberTooLow", 0, func(t *tb) { numberThatDoesNotMatch(t, -5, "C-137/low", "C-137/low") }},
		{"C-142_LinkDownAndBack", Changes | VirtualTime, linkDownAndBack},
		{"C-142_SourceAddressRemoved", Changes | VirtualTime, sourceAddressRemoved},
	}
}

func noRNRRetry(t *tb) {
	a, b := t.pair(func(l *link) { l.a.RNRRetry = 0; l.b.MinRNRTimer = 500 * time.Millisecond })
	a.send(verbs.Send(1, a.sge(0, 8), ib.Signaled))
	a.send(verbs.Send(2, a.sge(0, 8), 0))
	start := time.Now()
	a.sent(1, ib.StatusRNRRetryExc)
	if took := time.Since(start); took > 400*time.Millisecond {
		t.Errorf("took %v, waiting was not asked for", took)
	}
	a.sent(2, ib.StatusWRFlush)
	a.state(ib.StateError)
	b.state(ib.StateRTS)
	b.empty()
}

func rnrRetries(t *tb) {
	const timer, retries = 10240 * time.Microsecond, 3
	tries := 0
	var w *Filter
	if t.Fabric != nil {
		w = t.Fabric.Rule(Rule{From: t.Addr, To: t.PeerAddr, Opcodes: []uint8{OpSendOnly}})
	}
	a, b := t.pair(func(l *link) { l.a.RNRRetry = retries; l.b.MinRNRTimer = timer })
	start := time.Now()
	a.send(verbs.Send(1, a.sge(0, 8), ib.Signaled))
	a.sent(1, ib.StatusRNRRetryExc)
	if took := time.Since(start); took < retries*timer {
		t.Errorf("took %v, want at least %v", took, retries*timer)
	}
	if w != nil {
		if tries = w.Hits(); tries != retries+1 {
			t.Errorf("%d tries, want %d", tries, retries+1)
		}
	}
	b.state(ib.StateRTS)
}

func receiveInTime(t *tb) {
	a, b := t.pair(func(l *link) { l.a.RNRRetry = 6; l.b.MinRNRTimer = 20 * time.Millisecond })
	a.send(verbs.Send(1, a.sge(0, 8), ib.Signaled))
	t.pass(30*time.Millisecond, 30*time.Millisecond)
	b.recv(2, 0, 8)
	a.sent(1, ib.StatusSuccess)
	b.got(2, ib.StatusSuccess)
}

// An RNR NAK is progress: the transport's own timer does not count while it waits.
func rnrForEver(t *tb) {
	a, b := t.pair(func(l *link) {
		l.a.RNRRetry, l.a.RetryCount, l.a.Timeout = 7, 3, 16*time.Millisecond
		l.b.MinRNRTimer = 100 * time.Millisecond
	})
	a.send(verbs.Send(1, a.sge(0, 8), ib.Signaled))
	t.rnrOutage(5*time.Second, a, b)
}

// rnrOutage lets a send wait for its receive. A provider whose transport timer runs
// meanwhile gives up.
func (t *tb) rnrOutage(d time.Duration, a, b *end) {
	t.Helper()
	time.Sleep(d)
	got, err := a.qp.Query(ib.AttrState)
	t.ok(err, "query")
	if got.State == ib.StateRTS {
		a.empty()
	}
	b.recv(2, 0, 8)
	wc, _ := a.sentAt(1, "C-131/sender", ib.StatusSuccess)
	if wc.Status != ib.StatusSuccess {
		a.state(ib.StateError)
		b.quiet()
		b.state(ib.StateRTS)
		return
	}
	a.state(ib.StateRTS)
	b.got(2, ib.StatusSuccess)
}

// A transport timer that is longer than the outage is not needed, and does no harm.
func rnrLongOutage(t *tb) {
	a, b := t.pair(func(l *link) {
		l.a.RNRRetry, l.a.RetryCount, l.a.Timeout = 7, 7, time.Second
		l.b.MinRNRTimer = 100 * time.Millisecond
	})
	a.send(verbs.Send(1, a.sge(0, 8), ib.Signaled))
	time.Sleep(3 * time.Second)
	a.empty()
	a.state(ib.StateRTS)
	b.recv(2, 0, 8)
	a.sent(1, ib.StatusSuccess)
	b.got(2, ib.StatusSuccess)
}

// Code 0 of the timer is 655.36 ms, not zero.
func defaultRNRTimer(t *tb) {
	a, b := t.pair(func(l *link) { l.b.MinRNRTimer = 655360 * time.Microsecond })
	start := time.Now()
	a.send(verbs.Send(1, a.sge(0, 8), ib.Signaled))
	time.Sleep(50 * time.Millisecond)
	b.recv(2, 0, 8)
	a.sent(1, ib.StatusSuccess)
	if took := time.Since(start); took < 600*time.Millisecond || took > 700*time.Millisecond {
		t.Errorf("took %v, want about 655 ms", took)
	}
}

func peerDoesNotAnswer(t *tb) {
	const timeout, retries = 16 * time.Millisecond, 2
	for _, s := range []ib.QPState{ib.StateReset, ib.StateInit, ib.StateError, allGone} {
		a, b := t.pair(func(l *link) { l.a.Timeout, l.a.RetryCount = timeout, retries })
		switch s {
		case ib.StateReset:
			b.reset()
		case ib.StateInit:
			b.reset()
			b.init()
		case ib.StateError:
			b.fail()
		default:
			t.closed(b.qp, "peer")
		}
		start := time.Now()
		a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), 0))
		a.send(verbs.Write(2, b.mr.Remote(0, 8), a.sge(0, 8), 0))
		a.send(verbs.Write(3, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
		a.sent(1, ib.StatusRetryExc)
		took := time.Since(start)
		a.sent(2, ib.StatusWRFlush)
		a.sent(3, ib.StatusWRFlush)
		a.state(ib.StateError)
		a.empty()
		if took < (retries+1)*timeout {
			t.Errorf("peer in %v: gave up after %v, want at least %v", s, took, (retries+1)*timeout)
		}
		if limit := 8 * (retries + 1) * timeout; t.Virtual && took > limit {
			t.Errorf("peer in %v: gave up after %v, want less than %v", s, took, limit)
		}
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
}

// allGone stands for a queue pair that was destroyed.
const allGone = ib.QPState(99)

func peerCutOff(t *tb) {
	a, b := t.pair(func(l *link) { l.a.Timeout, l.a.RetryCount = 16*time.Millisecond, 3 })
	heal := t.Fabric.Cut(t.Addr, t.PeerAddr)
	a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	time.Sleep(20 * time.Millisecond) // less than all tries
	heal()
	a.sent(1, ib.StatusSuccess)
	heal = t.Fabric.Cut(t.Addr, t.PeerAddr)
	a.send(verbs.Write(2, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	a.sent(2, ib.StatusRetryExc)
	heal()
	a.state(ib.StateError)
	b.state(ib.StateRTS)
}

// Seven retries are seven, and each try is sent.
func sevenRetries(t *tb) {
	a, b := t.pair(func(l *link) { l.a.Timeout, l.a.RetryCount = time.Millisecond, 7 })
	heal := t.Fabric.Cut(t.PeerAddr, t.Addr) // the answers; on one host everything
	defer heal()
	w := t.Fabric.Rule(Rule{Opcodes: []uint8{OpWriteOnly}})
	start := time.Now()
	a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	a.sent(1, ib.StatusRetryExc)
	if took := time.Since(start); took < 8*time.Millisecond || took > time.Second {
		t.Errorf("gave up after %v", took)
	}
	if t.Addr != t.PeerAddr && w.Hits() < 8 {
		t.Errorf("%d packets, want at least 8 tries", w.Hits())
	}
}

func noTimeout(t *tb) {
	a, b := t.pair(func(l *link) { l.a.Timeout = 0 })
	heal := t.Fabric.Cut(t.Addr, t.PeerAddr)
	a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	time.Sleep(time.Hour)
	a.empty()
	a.state(ib.StateRTS)
	heal()
}

// A receiver that expects another number than the sender begins with delivers nothing. What
// the sender makes of the answers may depend on the half of the numbers in which it begins.
func numberThatDoesNotMatch(t *tb, d int32, lower, upper string) {
	for _, psn := range []ib.PSN{0x1000, 0x6FFFF0, 0x900000, 0xFFF000} {
		a, b := t.pair(func(l *link) {
			l.a.Timeout, l.a.RetryCount = 8*time.Millisecond, 2
			l.a.SQPSN, l.b.RQPSN = psn, ib.PSN(int32(psn)+d)&0xFFFFFF
		})
		point := lower
		if psn >= 1<<23 {
			point = upper
		}
		b.recv(1, 0, 64)
		a.send(verbs.Send(2, a.sge(0, 8), ib.Signaled))
		t.Logf("first number %v, expected is %v", psn, b.attr.RQPSN)
		a.sentAt(2, point, ib.StatusRetryExc)
		b.quiet()
		b.state(ib.StateRTS)
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
}

func linkDownAndBack(t *tb) {
	p := t.Provider.(changeable)
	a, b := t.pair(func(l *link) { l.a.Timeout, l.a.RetryCount = 67*time.Millisecond, 7 })
	t.drainAsync(t.a)
	t.ok(p.SetLink(false), "link down")
	if ev := t.asyncEvent(t.a); ev.Type != ib.EventPortErr || ev.Port != 1 {
		t.Errorf("link down: %v of port %d", ev.Type, ev.Port)
	}
	a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	time.Sleep(200 * time.Millisecond)
	a.empty()
	t.ok(p.SetLink(true), "link up")
	a.sent(1, ib.StatusSuccess)
	t.ok(p.SetLink(false), "link down")
	a.send(verbs.Write(2, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	a.sent(2, ib.StatusRetryExc)
	t.ok(p.SetLink(true), "link up")
	t.drainAsync(t.a)
}

func sourceAddressRemoved(t *tb) {
	p := t.Provider.(changeable)
	a, b := t.pair(func(l *link) { l.a.Timeout, l.a.RetryCount = 16*time.Millisecond, 2 })
	t.ok(p.SetAddrs(nil), "take the addresses away")
	a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	wc, err := a.scq.Next(t.limit)
	t.ok(err, "wait")
	if wc.Status == ib.StatusSuccess {
		t.Error("a send succeeded from an address that is gone")
	}
	t.ok(p.SetAddrs([]netip.Addr{t.Addr}), "give the address back")
	t.drainAsync(t.a)
}
