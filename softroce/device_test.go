package softroce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// bubble runs f in a synctest bubble with a network in memory. When it ends nothing of
// the devices may be left: synctest fails a test whose goroutines do not end.
func bubble(t *testing.T, f func(t *testing.T, n *network)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { f(t, newNetwork()) })
}

func fill(b []byte, seed uint64) {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	r.Read(b)
}

func ok(t testing.TB, w driver.WC, id uint64) {
	t.Helper()
	if w.Status != ib.StatusSuccess || w.ID != id {
		t.Fatalf("completion %d with %v, want %d", w.ID, w.Status, id)
	}
}

// pairOf makes two connected sides on devices of their own.
func pairOf(t *testing.T, n *network, c sideConfig, p path) (a, b *side) {
	t.Helper()
	a = newSide(t, n.provider(t, 1, addrA), addrA, c)
	b = newSide(t, n.provider(t, 2, addrB), addrB, c)
	connect(t, a, b, p)
	return a, b
}

// sentOK waits for the completion of a send request of s.
func sentOK(t testing.TB, s *side, id uint64) {
	t.Helper()
	ok(t, s.next(s.scq), id)
}

func TestC091_SendAndReceive(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := pairOf(t, n, sideConfig{}, path{})
		for i, size := range []int{0, 1, 63, 1024, 1025, 5000, 60_000} {
			fill(a.mem[:size], uint64(i))
			clear(b.mem)
			rid := b.recv(0, size)
			sid := a.send(0, size, 0)
			w := b.next(b.rcq)
			ok(t, w, rid)
			if int(w.ByteLen) != size || w.Opcode != ib.WCRecv || w.QPN != b.qp.Num() || !bytes.Equal(a.mem[:size], b.mem[:size]) {
				t.Errorf("%d bytes: %+v", size, w)
			}
			ok(t, a.next(a.scq), sid)
		}
	})
}

func TestOneSided(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := pairOf(t, n, sideConfig{size: 1 << 20}, path{mtu: ib.MTU4096})
		const half = 500_001
		fill(a.mem[:half], 1)
		sentOK(t, a, a.write(b, 3, 0, half))
		if !bytes.Equal(a.mem[:half], b.mem[3:3+half]) {
			t.Error("WRITE: bytes differ")
		}
		id := a.post(func(w *driver.SendSlot) {
			w.Opcode, w.Addr, w.RKey = ib.OpRead, b.base+3, b.rkey
			w.SGL = append(w.SGL, a.sge(half, half))
		})
		ok(t, a.next(a.scq), id)
		if !bytes.Equal(a.mem[:half], a.mem[half:2*half]) {
			t.Error("READ: bytes differ")
		}
	})
}

func TestC111_SelfConnected(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p := n.provider(t, 1, addrA)
		a, b := newSide(t, p, addrA, sideConfig{}), newSide(t, p, addrA, sideConfig{})
		connect(t, a, b, path{})
		copy(a.mem, "to a neighbour")
		rid := b.recv(0, 100)
		sentOK(t, a, a.send(0, 14, 0))
		ok(t, b.next(b.rcq), rid)
		if string(b.mem[:14]) != "to a neighbour" {
			t.Errorf("%q", b.mem[:14])
		}
		c := newSide(t, p, addrA, sideConfig{})
		if err := c.toRTR(c.qp, addrA, c.qp.Num(), path{}); err != nil {
			t.Fatal(err)
		}
		if err := c.toRTS(c.qp, path{}); err != nil {
			t.Fatal(err)
		}
		copy(c.mem, "to myself")
		rid = c.recv(100, 100)
		sentOK(t, c, c.send(0, 9, 0))
		ok(t, c.next(c.rcq), rid)
		if string(c.mem[100:109]) != "to myself" {
			t.Errorf("%q", c.mem[100:109])
		}
	})
}

// Every packet is lost once, in both directions, and timers bring it back.
func TestC114_EveryLossIsRepaired(t *testing.T) {
	for lose := range 14 {
		t.Run(fmt.Sprint(lose), func(t *testing.T) {
			bubble(t, func(t *testing.T, n *network) {
				a, b := pairOf(t, n, sideConfig{}, path{})
				k := 0
				n.setHook(func(from, to netip.AddrPort, p []byte, _ *uint8) bool {
					k++
					return k-1 != lose
				})
				fill(a.mem[:5000], 9)
				for range 2 {
					rid := b.recv(0, 5000)
					sid := a.send(0, 5000, 0)
					ok(t, b.next(b.rcq), rid)
					ok(t, a.next(a.scq), sid)
				}
				if !bytes.Equal(a.mem[:5000], b.mem[:5000]) {
					t.Error("bytes differ")
				}
			})
		})
	}
}

func TestNoTimerWhenIdle(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := pairOf(t, n, sideConfig{}, path{})
		rid := b.recv(0, 10)
		sentOK(t, a, a.send(0, 10, 0))
		ok(t, b.next(b.rcq), rid)
		time.Sleep(time.Minute)
		sent := n.sent.Load()
		for _, s := range []*side{a, b} {
			if !s.ctx.d.timers.Idle() {
				t.Errorf("%v: a timer is armed a minute after the traffic", s.addr)
			}
		}
		time.Sleep(time.Hour)
		if n.sent.Load() != sent {
			t.Error("packets without traffic")
		}
	})
}

func TestC238_SolicitedTraffic(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := pairOf(t, n, sideConfig{}, path{})
		step := func(what string, want int, f func()) {
			t.Helper()
			if err := b.rcq.Arm(true); err != nil {
				t.Fatal(err)
			}
			f()
			synctest.Wait()
			if got := b.events(); len(got) != want {
				t.Errorf("%s: %d events, want %d", what, len(got), want)
			}
			if w, ok := b.poll(b.rcq); !ok {
				t.Errorf("%s: no completion: %v", what, w)
			}
		}
		for range 3 {
			b.recv(0, 10)
		}
		step("SEND", 0, func() { a.send(0, 1, 0) })
		step("solicited SEND", 1, func() { a.send(0, 1, ib.Solicited) })
		step("solicited WRITE with immediate", 1, func() {
			a.post(func(w *driver.SendSlot) {
				w.Opcode, w.Flags, w.Imm = ib.OpWriteImm, w.Flags|ib.Solicited, 1
				w.Addr, w.RKey = b.base, b.rkey
				w.SGL = append(w.SGL, a.sge(0, 8))
			})
		})
		b.recv(0, 10)
		step("flush", 1, b.qp.fail)
		// Of a send queue only failures count.
		a.scq.Arm(true)
		synctest.Wait()
		if got := a.events(); len(got) != 0 {
			t.Errorf("good sends fired a solicited arm: %v", got)
		}
		a.send(0, 1, ib.Solicited)
		a.qp.fail()
		if got := a.events(); len(got) != 1 {
			t.Errorf("%d events for a failed send, want 1", len(got))
		}
	})
}

func TestC057_C186_OverrunFailsQueuePairs(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a := newSide(t, n.provider(t, 1, addrA), addrA, sideConfig{})
		b := newSide(t, n.provider(t, 2, addrB), addrB, sideConfig{entries: 2})
		connect(t, a, b, path{})
		other := b.newQP(sideConfig{depth: 4}) // on the same queues
		for range 4 {
			b.recv(0, 10)
		}
		for range 4 {
			a.send(0, 1, 0)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if e := asyncTypes(t, b.ctx); len(e) == 0 || e[0] != ib.EventCQErr {
			t.Errorf("events %v, want CQ_ERR", e)
		}
		if s := b.qp.eng.State(); s != ib.StateError {
			t.Errorf("state %v", s)
		}
		if s := other.eng.State(); s != ib.StateReset {
			t.Errorf("a queue pair in RESET went to %v", s)
		}
		for range 2 {
			if w, ok := b.poll(b.rcq); !ok || w.Status != ib.StatusSuccess {
				t.Errorf("%v %v", w, ok)
			}
		}
		if _, err := pollOne(b.rcq); !errors.Is(err, errOverrun) {
			t.Errorf("poll of an overrun queue: %v", err)
		}
	})
}

func TestC191_DeviceRemoval(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p := n.provider(t, 1, addrA)
		a, b := newSide(t, p, addrA, sideConfig{}), newSide(t, n.provider(t, 2, addrB), addrB, sideConfig{})
		connect(t, a, b, path{retries: 1})
		rid := a.recv(0, 10)
		woken := make(chan error, 3)
		a.rcq.Arm(true)
		go func() { woken <- a.ch.Wait(context.Background()) }()
		go func() { woken <- a.ctx.async.Wait(context.Background()) }()
		synctest.Wait()
		p.RemoveDevice()
		for range 2 {
			if err := <-woken; err != nil {
				t.Error(err)
			}
		}
		// The last event, then the news; the same for completions.
		if got, ok, err := a.ch.Next(); got != 2 || !ok || err != nil {
			t.Errorf("%v %v %v", got, ok, err)
		}
		if _, ok, err := a.ch.Next(); ok || !errors.Is(err, driver.ErrDeviceGone) {
			t.Errorf("channel after the last event: %v", err)
		}
		if e, ok, err := a.ctx.async.Next(); !ok || err != nil || e.Type != ib.EventDeviceFatal {
			t.Errorf("%v %v %v", e, ok, err)
		}
		if _, ok, err := a.ctx.async.Next(); ok || !errors.Is(err, driver.ErrDeviceGone) {
			t.Errorf("async after the last event: %v", err)
		}
		if w, err := pollOne(a.rcq); err != nil || w.ID != rid || w.Status != ib.StatusWRFlush {
			t.Errorf("%v %v", w, err)
		}
		for what, err := range map[string]error{
			"poll":       second(pollOne(a.rcq)),
			"arm":        a.rcq.Arm(false),
			"post send":  second(a.qp.CommitSend(0)),
			"post recv":  second(a.qp.CommitRecv(0)),
			"query":      second(a.qp.Query(0)),
			"modify":     a.qp.Modify(&driver.QPAttr{State: ib.StateReset}, ib.AttrState),
			"query port": second(a.ctx.QueryPort(1)),
			"device":     second(a.ctx.QueryDevice()),
			"gids":       second(a.ctx.GIDs()),
			"pd":         second(a.ctx.AllocPD()),
			"mr":         second(a.pd.RegMR(make([]byte, 1), 0, 0)),
			"channel":    second(a.ctx.CreateCompChannel()),
			"cq":         second(a.ctx.CreateCQ(driver.CQConfig{Entries: 1})),
			"qp":         second(a.pd.CreateQP(driver.QPConfig{Type: ib.RC, SendCQ: a.scq, RecvCQ: a.rcq})),
			"open":       second(p.OpenDevice("")),
		} {
			if !errors.Is(err, driver.ErrDeviceGone) {
				t.Errorf("%s on a removed device: %v", what, err)
			}
		}
		if l, err := p.Devices(); len(l) != 0 || err != nil {
			t.Errorf("list %v, %v", l, err)
		}
		// The peer finds out by itself.
		id := b.send(0, 1, 0)
		if w := b.next(b.scq); w.ID != id || w.Status != ib.StatusRetryExc {
			t.Errorf("peer: %+v", w)
		}
		p.RestoreDevice()
		c := newSide(t, p, addrA, sideConfig{})
		d := newSide(t, n.provider(t, 3, addrC), addrC, sideConfig{})
		connect(t, c, d, path{})
		rid = d.recv(0, 10)
		c.send(0, 1, 0)
		ok(t, d.next(d.rcq), rid)
	})
}

func second[T any](_ T, err error) error { return err }

func TestCloseWhileInUse(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p, err := New(&Config{Addrs: []netip.Addr{addrA}, ListenPacket: n.listen})
		if err != nil {
			t.Fatal(err)
		}
		a, b := newSide(t, p, addrA, sideConfig{}), newSide(t, n.provider(t, 2, addrB), addrB, sideConfig{})
		connect(t, a, b, path{})
		a.recv(0, 1)
		woken := make(chan error, 2)
		go func() { woken <- a.ch.Wait(context.Background()) }()
		go func() { woken <- a.ctx.async.Wait(context.Background()) }()
		synctest.Wait()
		for range 2 {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		<-woken
		<-woken
		if _, _, err := a.ch.Next(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("channel: %v", err)
		}
		if _, _, err := a.ctx.async.Next(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("async: %v", err)
		}
		if _, err := a.qp.CommitSend(0); !errors.Is(err, net.ErrClosed) {
			t.Errorf("post: %v", err)
		}
		if _, err := p.Devices(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("devices: %v", err)
		}
		p.RemoveDevice()
		p.RestoreDevice()
		if err := p.SetLink(true); !errors.Is(err, net.ErrClosed) {
			t.Errorf("set link: %v", err)
		}
	})
}

// Objects are closed in every order, with traffic going on.
func TestCloseInAnyOrder(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, n *network) {
				pa, pb := n.provider(t, 1, addrA), n.provider(t, 2, addrB)
				a, b := newSide(t, pa, addrA, sideConfig{}), newSide(t, pb, addrB, sideConfig{})
				connect(t, a, b, path{retries: 1, timeout: time.Millisecond})
				closers := []func() error{}
				for _, s := range []*side{a, b} {
					closers = append(closers, s.qp.Close, s.mr.Close, s.scq.Close, s.rcq.Close, s.ch.Close, s.pd.Close, s.ctx.Close)
				}
				closers = append(closers, pa.Close, pb.Close)
				r := rand.New(rand.NewPCG(seed, 1))
				r.Shuffle(len(closers), func(i, j int) { closers[i], closers[j] = closers[j], closers[i] })
				for _, f := range closers {
					for _, s := range []*side{a, b} {
						if len(s.qp.SendSlots()) > 0 && !s.qp.closed && s.qp.err() == nil && s.qp.eng.State() >= ib.StateRTS {
							s.write(other(s, a, b), 0, 100, 3000)
						}
					}
					if err := f(); err != nil {
						t.Errorf("seed %d: %v", seed, err)
					}
					if r.IntN(2) == 0 {
						time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
					}
				}
				for _, f := range closers {
					if err := f(); err != nil {
						t.Errorf("seed %d, second close: %v", seed, err)
					}
				}
				for _, d := range []*device{a.ctx.d, b.ctx.d} {
					for k := range d.objects {
						if n := d.objects[k].Load(); n != 0 {
							t.Errorf("seed %d: %d %s are left", seed, n, objectLimits[k].name)
						}
					}
					if len(d.qps.all()) != 0 || len(d.window.peers) != 0 || len(d.contexts) != 0 {
						t.Errorf("seed %d: something is left: %d queue pairs, %d peers, %d openings",
							seed, len(d.qps.all()), len(d.window.peers), len(d.contexts))
					}
				}
			})
		})
	}
}

func other(s, a, b *side) *side {
	if s == a {
		return b
	}
	return a
}

func TestC142_LinkDown(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := pairOf(t, n, sideConfig{}, path{timeout: 10 * time.Millisecond, retries: 2})
		rid := b.recv(0, 10)
		p := providerOf(a)
		p.port.setLink(false)
		sid := a.send(0, 10, 0)
		time.Sleep(5 * time.Millisecond)
		p.port.setLink(true) // a short break is survived
		ok(t, a.next(a.scq), sid)
		ok(t, b.next(b.rcq), rid)
		p.port.setLink(false)
		id := a.send(0, 10, 0)
		if w := a.next(a.scq); w.ID != id || w.Status != ib.StatusRetryExc {
			t.Errorf("%+v", w)
		}
		if a.ctx.d.stats.sendErrors.Load() == 0 {
			t.Error("lost packets are not counted")
		}
	})
}

func providerOf(s *side) *device { return s.ctx.d }

func TestC076_C080_PathErrors(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p := newProvider(t, &Config{Addrs: []netip.Addr{addrA}, MTU: 1500, ListenPacket: n.listen})
		a := newSide(t, p, addrA, sideConfig{})
		for what, x := range map[string]struct {
			change func(*driver.QPAttr)
			want   error
		}{
			"MTU 0":               {func(q *driver.QPAttr) { q.PathMTU = 0 }, syscall.EINVAL},
			"MTU 6":               {func(q *driver.QPAttr) { q.PathMTU = 6 }, syscall.EINVAL},
			"MTU above the link":  {func(q *driver.QPAttr) { q.PathMTU = ib.MTU2048 }, syscall.EINVAL},
			"no GRH":              {func(q *driver.QPAttr) { q.AH.Global = false }, syscall.EINVAL},
			"empty GID index":     {func(q *driver.QPAttr) { q.AH.SGIDIndex = 5 }, syscall.ENODATA},
			"bad GID index":       {func(q *driver.QPAttr) { q.AH.SGIDIndex = -1 }, syscall.EINVAL},
			"wrong port":          {func(q *driver.QPAttr) { q.AH.Port = 2 }, syscall.EINVAL},
			"multicast":           {func(q *driver.QPAttr) { q.AH.DGID = ib.GIDFromAddr(netip.MustParseAddr("224.0.0.1")) }, syscall.EINVAL},
			"no address":          {func(q *driver.QPAttr) { q.AH.DGID = ib.GID{} }, syscall.EINVAL},
			"family of addresses": {func(q *driver.QPAttr) { q.AH.DGID = ib.GIDFromAddr(netip.MustParseAddr("fd00::1")) }, syscall.EINVAL},
		} {
			if err := a.qp.Modify(&driver.QPAttr{State: ib.StateInit, Port: 1}, ib.AttrState|ib.AttrPort|ib.AttrPKeyIndex|ib.AttrAccess); err != nil {
				t.Fatal(err)
			}
			attr := driver.QPAttr{
				State: ib.StateRTR, PathMTU: ib.MTU1024, DestQPN: 5, MaxDestRDAtomic: 1, MinRNRTimer: time.Millisecond,
				AH: driver.AHAttr{Global: true, DGID: ib.GIDFromAddr(addrB), Port: 1},
			}
			x.change(&attr)
			if err := a.qp.Modify(&attr, ib.AttrState|ib.AttrAV|ib.AttrPathMTU|ib.AttrDestQPN|ib.AttrRQPSN|ib.AttrMaxDestRDAtomic|ib.AttrMinRNRTimer); !errors.Is(err, x.want) {
				t.Errorf("%s: %v, want %v", what, err, x.want)
			}
			if s := a.qp.eng.State(); s != ib.StateInit {
				t.Errorf("%s: state %v afterwards", what, s)
			}
			if len(a.ctx.d.window.peers) != 0 {
				t.Errorf("%s: a peer is remembered", what)
			}
		}
		for what, m := range map[string]struct {
			attr driver.QPAttr
			mask ib.QPAttrMask
		}{
			"port 0":      {driver.QPAttr{State: ib.StateInit}, ib.AttrState | ib.AttrPort},
			"port 255":    {driver.QPAttr{State: ib.StateInit, Port: 255}, ib.AttrState | ib.AttrPort},
			"P_Key index": {driver.QPAttr{State: ib.StateInit, Port: 1, PKeyIndex: 1}, ib.AttrState | ib.AttrPort | ib.AttrPKeyIndex},
			"second path": {driver.QPAttr{State: ib.StateInit, Port: 1}, ib.AttrState | ib.AttrAltPath},
		} {
			if err := a.qp.Modify(&m.attr, m.mask); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// Over real sockets, with trains, on both families.
func TestTrafficOverSockets(t *testing.T) {
	for _, a := range []string{"127.83.1.7", "::1"} {
		t.Run(a, func(t *testing.T) {
			if c, err := net.ListenPacket("udp", net.JoinHostPort(a, "0")); err != nil {
				if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
					t.Skipf("this host does not have %s: %v", a, err)
				}
				t.Fatal(err)
			} else {
				c.Close()
			}
			p := newProvider(t, &Config{Addrs: addrs(a)})
			a, b := neighbours(t, p)
			m := b.meeting()
			fill(a.mem, 3)
			for _, size := range []int{1, 4096, 4097, 70_000, 1 << 20} {
				clear(b.mem)
				if err := a.write(&m, size, ib.Signaled); err != nil {
					t.Fatal(err)
				}
				if _, err := a.next(); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(a.mem[:size], b.mem[:size]) {
					t.Errorf("%d bytes differ", size)
				}
			}
			s := p.Stats()
			if s.DropICRC != 0 || s.SendErrors != 0 {
				t.Errorf("%+v", s)
			}
			if e, _ := p.dev.endpoint(a.addr); e.limit.Segments > 1 && s.SendCalls > s.PacketsOut/4 {
				t.Errorf("no trains: %d packets in %d calls", s.PacketsOut, s.SendCalls)
			}
		})
	}
}

// C-142: the address of a connection goes away and comes back.
func TestC142_AddressRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		pa := n.provider(t, 1, addrA, addrC)
		a := newSide(t, pa, addrA, sideConfig{})
		b := newSide(t, n.provider(t, 2, addrB), addrB, sideConfig{})
		connect(t, a, b, path{timeout: 10 * time.Millisecond, retries: 3})
		for range 3 {
			b.recv(0, 10)
		}
		sentOK(t, a, a.send(0, 1, 0))
		pa.SetAddrs([]netip.Addr{addrC})
		id := a.send(0, 1, 0)
		time.Sleep(5 * time.Millisecond)
		pa.SetAddrs([]netip.Addr{addrC, addrA})
		sentOK(t, a, id)
		pa.SetAddrs([]netip.Addr{addrC})
		id = a.send(0, 1, 0)
		if w := a.next(a.scq); w.ID != id || w.Status != ib.StatusRetryExc {
			t.Errorf("%+v", w)
		}
	})
}
