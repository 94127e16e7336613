package softroce

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

func TestPeerBufferIsShared(t *testing.T) {
	t.Parallel()
	var w windows
	w.init()
	p := w.get(addrA)
	if got := p.share(false); got != defaultPeerBuffer {
		t.Errorf("unknown peer: %d", got)
	}
	w.setPeerBuffer(addrA, 1<<20)
	for i, want := range []int{1 << 20, 1 << 19, 1 << 20 / 3, 1 << 18} {
		if got := p.share(false); got != want {
			t.Errorf("%d active: %d, want %d", i, got, want)
		}
		p.active.Add(1)
		if got := p.share(true); got != want {
			t.Errorf("%d active, one of them: %d, want %d", i, got, want)
		}
	}
	p.active.Store(1 << 20)
	if got := p.share(true); got != minWindow {
		t.Errorf("very many: %d", got)
	}
	for bytes, want := range map[int]int64{-1: minPeerBuffer, 0: minPeerBuffer, 1 << 40: maxPeerBuffer} {
		w.setPeerBuffer(addrA, bytes)
		if got := p.bytes.Load(); got != want {
			t.Errorf("told %d: %d, want %d", bytes, got, want)
		}
	}
	if again := w.get(addrA); again != p {
		t.Error("another buffer for the same peer")
	}
	w.put(addrA)
	w.put(addrA)
	w.put(addrA)
	if len(w.peers) != 0 {
		t.Error("a peer without queue pairs is remembered")
	}
	if got := w.get(addrA).share(false); got != defaultPeerBuffer {
		t.Errorf("met again: %d", got)
	}
}

// What peers say of themselves costs no more memory than a bound.
func TestToldPeersAreBounded(t *testing.T) {
	t.Parallel()
	var w windows
	w.init()
	used := w.get(addrB)
	for i := range 10 * maxIdlePeers {
		w.setPeerBuffer(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 1<<20)
	}
	if len(w.peers) > maxIdlePeers+1 || w.idle != len(w.peers)-1 {
		t.Errorf("%d peers, %d of them idle", len(w.peers), w.idle)
	}
	if w.get(addrB) != used {
		t.Error("a peer with a queue pair was forgotten")
	}
	for a := range w.peers {
		w.get(a)
	}
	if w.idle != 0 {
		t.Errorf("%d idle, all are in use", w.idle)
	}
}

// The queue pairs of a device tell their machines what they may have in flight.
func TestWindowFollowsActiveQueuePairs(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		pa, pb := n.provider(t, 1, addrA), n.provider(t, 2, addrB)
		a1, a2 := newSide(t, pa, addrA, sideConfig{}), newSide(t, pa, addrA, sideConfig{})
		b1, b2 := newSide(t, pb, addrB, sideConfig{}), newSide(t, pb, addrB, sideConfig{})
		pa.dev.setPeerBuffer(addrB, 1<<20)
		connect(t, a1, b1, path{})
		connect(t, a2, b2, path{})
		b := pa.dev.window.peers[addrB]
		n.setHook(func(netip.AddrPort, netip.AddrPort, []byte, *uint8) bool { return false })
		a1.send(0, 100, 0)
		if a1.qp.window != 1<<20 || b.active.Load() != 1 {
			t.Errorf("alone: %d, %d active", a1.qp.window, b.active.Load())
		}
		a2.send(0, 100, 0)
		if a2.qp.window != 1<<19 || b.active.Load() != 2 {
			t.Errorf("two: %d, %d active", a2.qp.window, b.active.Load())
		}
		n.setHook(nil)
		b1.recv(0, 100)
		a1.next(a1.scq)
		if b.active.Load() != 1 {
			t.Errorf("%d active when one is done", b.active.Load())
		}
		a2.qp.Close()
		if b.active.Load() != 0 {
			t.Errorf("%d active when the other is closed", b.active.Load())
		}
	})
}

// A reader that is not woken, see rocev2.md 2.8: the timer finds the answer in the
// socket, and nothing is sent again.
func TestTimersLookIntoTheSocketFirst(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		n.deaf = map[netip.Addr]bool{addrA: true}
		a, b := pairOf(t, n, sideConfig{}, path{})
		b.recv(0, 100)
		id := a.send(0, 100, 0)
		synctest.Wait()
		if _, ok := a.poll(a.scq); ok {
			t.Fatal("the reader was woken")
		}
		time.Sleep(time.Second)
		w, ok := a.poll(a.scq)
		if !ok || w.ID != id || w.Status != ib.StatusSuccess {
			t.Fatalf("%+v, %v", w, ok)
		}
		if s := a.ctx.d.stats.snapshot(); s.Rescues != 1 || s.PacketsOut != 1 {
			t.Errorf("%d rescues, %d packets", s.Rescues, s.PacketsOut)
		}
	})
}

// Should the ICRCs of trains be wrong at the other end, nothing ever comes back: then
// it is tried without trains.
func TestTrainsAreGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := pairOf(t, n, sideConfig{}, path{})
		p := a.qp.peer.Load()
		p.segments.Store(64)
		deliver := false
		n.setHook(func(netip.AddrPort, netip.AddrPort, []byte, *uint8) bool { return deliver })
		b.recv(0, 100)
		id := a.send(0, 100, 0)
		time.Sleep(30 * time.Millisecond)
		n.setHook(nil)
		w := a.next(a.scq)
		if w.ID != id || w.Status != ib.StatusSuccess {
			t.Errorf("%+v", w)
		}
		if s := p.segments.Load(); s != 1 {
			t.Errorf("trains of %d", s)
		}
	})
}
