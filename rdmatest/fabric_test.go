package rdmatest_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
)

func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
)

// sockets gives two sockets of a fabric.
func sockets(t *testing.T) (f *rdmatest.Fabric, a, b netio.MarkedConn) {
	t.Helper()
	f = rdmatest.NewFabric(t, 7)
	return f, socket(t, f, addrA), socket(t, f, addrB)
}

func socket(t *testing.T, f *rdmatest.Fabric, a netip.Addr) netio.MarkedConn {
	t.Helper()
	c, err := f.ListenPacket(netip.AddrPortFrom(a, wire.Port))
	if err != nil {
		t.Fatal(err)
	}
	return c.(netio.MarkedConn)
}

func to(a netip.Addr) net.Addr { return net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, wire.Port)) }

// say sends numbered datagrams, hear gives the numbers that have arrived.
func say(t *testing.T, c net.PacketConn, dst netip.Addr, from, n int) {
	t.Helper()
	for i := range n {
		b := append([]byte{0x0A}, fmt.Sprintf("           %d", from+i)...)
		if _, err := c.WriteTo(b, to(dst)); err != nil {
			t.Fatal(err)
		}
	}
}

func hear(t *testing.T, c net.PacketConn) string {
	t.Helper()
	var got []string
	for {
		c.SetReadDeadline(time.Now().Add(time.Minute))
		var b [256]byte
		n, _, err := c.ReadFrom(b[:])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.SetReadDeadline(time.Time{})
			return strings.Join(got, " ")
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimSpace(string(b[1:n])))
	}
}

func TestRules(t *testing.T) {
	for _, c := range []struct {
		name string
		rule rdmatest.Rule
		want string
		hits int
	}{
		{"Nothing", rdmatest.Rule{}, "0 1 2 3 4 5", 6},
		{"DropAll", rdmatest.Rule{Drop: true}, "", 6},
		{"DropThird", rdmatest.Rule{Nth: 3, Drop: true}, "0 1 3 4 5", 1},
		{"DropTwoFromSecond", rdmatest.Rule{Nth: 2, Count: 2, Drop: true}, "0 3 4 5", 2},
		{"DropFromSecond", rdmatest.Rule{Nth: 2, Count: -1, Drop: true}, "0", 5},
		{"DropFirstTwo", rdmatest.Rule{Count: 2, Drop: true}, "2 3 4 5", 2},
		{"OtherOpcode", rdmatest.Rule{Opcodes: []uint8{4}, Drop: true}, "0 1 2 3 4 5", 0},
		{"OtherWay", rdmatest.Rule{From: addrB, Drop: true}, "0 1 2 3 4 5", 0},
		{"Match", rdmatest.Rule{Match: func(d rdmatest.Datagram) bool { return bytes.HasSuffix(d.Payload, []byte("4")) }, Drop: true}, "0 1 2 3 5", 1},
		{"Duplicate", rdmatest.Rule{Nth: 2, Duplicate: 2}, "0 1 1 1 2 3 4 5", 1},
		{"DuplicateBehind", rdmatest.Rule{Nth: 2, Duplicate: 1, Behind: 2}, "0 1 2 3 1 4 5", 1},
		{"Behind", rdmatest.Rule{Nth: 2, Behind: 3}, "0 2 3 4 1 5", 1},
		{"BehindMoreThanThereAre", rdmatest.Rule{Nth: 2, Behind: 64}, "0 2 3 4 5 1", 1},
		{"Delay", rdmatest.Rule{Nth: 2, Delay: time.Second}, "0 2 3 4 5 1", 1},
		{"DelayAllKeepsOrder", rdmatest.Rule{Delay: time.Second}, "0 1 2 3 4 5", 6},
		{"Replace", rdmatest.Rule{Nth: 1, Replace: func(d rdmatest.Datagram) []byte { return append(d.Payload, '!') }}, "0! 1 2 3 4 5", 1},
		{"Chance", rdmatest.Rule{Chance: 1, Drop: true}, "", 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f, a, b := sockets(t)
				w := f.Rule(c.rule)
				say(t, a, addrB, 0, 6)
				if got := hear(t, b); got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
				if w.Hits() != c.hits {
					t.Errorf("%d hits, want %d", w.Hits(), c.hits)
				}
				w.Remove()
				say(t, a, addrB, 7, 1)
				if got := hear(t, b); got != "7" {
					t.Errorf("without the rule: %q", got)
				}
			})
		})
	}
}

func TestHold(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f, a, b := sockets(t)
		w := f.Rule(rdmatest.Rule{Nth: 2, Count: 2, Hold: true})
		say(t, a, addrB, 0, 5)
		if got := hear(t, b); got != "0 3 4" || w.Held() != 2 {
			t.Errorf("got %q, %d held", got, w.Held())
		}
		w.ReleaseReversed()
		if got := hear(t, b); got != "2 1" || w.Held() != 0 {
			t.Errorf("released %q, %d held", got, w.Held())
		}
		w = f.Rule(rdmatest.Rule{Hold: true})
		say(t, a, addrB, 5, 2)
		w.Release()
		if got := hear(t, b); got != "5 6" {
			t.Errorf("released %q", got)
		}
		say(t, a, addrB, 7, 1)
		w.Remove()
		if got := hear(t, b); got != "" {
			t.Errorf("held when the rule was removed: %q", got)
		}
	})
}

func TestFlipAndMark(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f, a, b := sockets(t)
		read := func() (string, uint8) {
			t.Helper()
			var p [64]byte
			n, tos, from, err := b.ReadMarked(p[:])
			if err != nil || from.String() != "10.0.0.1:4791" {
				t.Fatal(from, err)
			}
			return string(p[:n]), tos
		}
		send := func(tos uint8) {
			t.Helper()
			if _, err := a.WriteMarked([]byte("ABC"), tos, to(addrB)); err != nil {
				t.Fatal(err)
			}
		}
		w := f.Rule(rdmatest.Rule{Flip: 1 + 8})
		send(0xB8)
		if s, tos := read(); s != "ACC" || tos != 0xB8 {
			t.Errorf("%q %#x", s, tos)
		}
		w.Remove()
		w = f.Rule(rdmatest.Rule{Mark: true})
		send(0x02)
		if _, tos := read(); tos != 3 {
			t.Errorf("marked: %#x", tos)
		}
		send(0)
		if _, tos := read(); tos != 0 {
			t.Errorf("marked a sender that does not allow it: %#x", tos)
		}
		w.Remove()
		f.Rule(rdmatest.Rule{Bleach: true})
		send(0xBA)
		if _, tos := read(); tos != 0xB8 {
			t.Errorf("bleached: %#x", tos)
		}
	})
}

// The same seed gives the same faults.
func TestSeed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		run := func(seed uint64) string {
			f := rdmatest.NewFabric(t, seed)
			a, b := socket(t, f, addrA), socket(t, f, addrB)
			f.Loss(addrA, addrB, 0.3)
			f.Duplicate(addrA, netip.Addr{}, 0.2)
			f.Delay(netip.Addr{}, addrB, time.Millisecond, 5*time.Millisecond)
			f.Reorder(addrA, addrB, 0.1)
			say(t, a, addrB, 0, 100)
			return hear(t, b)
		}
		first := run(42)
		if second := run(42); first != second {
			t.Errorf("with one seed:\n%s\n%s", first, second)
		}
		if other := run(43); other == first {
			t.Error("two seeds give the same")
		}
		if n := len(strings.Fields(first)); n < 50 || n > 120 {
			t.Errorf("%d of 100 datagrams with a loss of 0.3 and duplicates of 0.2", n)
		}
	})
}

func TestSockets(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f, a, b := sockets(t)
		if _, err := f.ListenPacket(netip.AddrPortFrom(addrA, wire.Port)); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("listen twice: %v", err)
		}
		for _, s := range []string{"0.0.0.0:4791", "10.0.0.3:0"} {
			if _, err := f.ListenPacket(netip.MustParseAddrPort(s)); err == nil {
				t.Errorf("listen on %s", s)
			}
		}
		if _, err := a.WriteTo(make([]byte, rdmatest.DefaultMTU-27), to(addrB)); !errors.Is(err, syscall.EMSGSIZE) {
			t.Errorf("too long: %v", err)
		}
		if _, err := a.WriteTo(make([]byte, rdmatest.DefaultMTU-28), to(addrB)); err != nil {
			t.Errorf("as long as it may be: %v", err)
		}
		if _, err := a.WriteTo([]byte("x"), to(netip.MustParseAddr("10.9.9.9"))); err != nil {
			t.Errorf("to nobody: %v", err)
		}
		// A short buffer takes the beginning.
		var p [4]byte
		if n, _, err := b.ReadFrom(p[:]); n != 4 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		// A queue that is full loses the rest, and says so.
		say(t, a, addrB, 0, 1500)
		s := f.Stats()
		if s.Overflow != 1500-1024 || s.NoRoute != 1 || s.Sent != 1502 {
			t.Errorf("%+v", s)
		}
		// A deadline wakes, a later one does not, Close does.
		done := make(chan error, 1)
		go func() {
			_, _, err := a.ReadFrom(p[:])
			done <- err
		}()
		synctest.Wait()
		a.SetReadDeadline(time.Now().Add(time.Hour))
		synctest.Wait()
		a.SetReadDeadline(time.Now().Add(-time.Hour))
		if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("deadline: %v", err)
		}
		if _, _, err := a.ReadFrom(p[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("past deadline: %v", err)
		}
		a.SetReadDeadline(time.Time{})
		go func() {
			_, _, err := a.ReadFrom(p[:])
			done <- err
		}()
		synctest.Wait()
		a.Close()
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("close: %v", err)
		}
		if err := a.Close(); err != nil {
			t.Errorf("close again: %v", err)
		}
		if _, err := a.WriteTo([]byte("x"), to(addrB)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write after close: %v", err)
		}
		if _, err := f.ListenPacket(netip.AddrPortFrom(addrA, wire.Port)); err != nil {
			t.Errorf("listen after close: %v", err)
		}
	})
}

// The socket is what netio expects of a packet connection.
func TestNetio(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		_, a, b := sockets(t)
		ca, cb := netio.Wrap(a, rdmatest.DefaultMTU), netio.Wrap(b, rdmatest.DefaultMTU)
		ms := []netio.Message{{Buf: []byte("abcdef"), Segment: 4, Addr: netip.AddrPortFrom(addrB, wire.Port), TOS: 2}}
		if _, err := ca.Write(ms); err != nil {
			t.Fatal(err)
		}
		in := []netio.Message{{Buf: make([]byte, 0, 100)}}
		for _, want := range []string{"abcd", "ef"} {
			n, err := cb.Read(in)
			if n != 1 || err != nil || string(in[0].Buf) != want || in[0].TOS != 2 || in[0].Addr.Addr() != addrA {
				t.Fatal(n, err, in[0])
			}
		}
		if n, err := cb.TryRead(in); n != 0 || err != nil {
			t.Errorf("nothing there: %d, %v", n, err)
		}
		ca.Write(ms)
		if n, err := cb.TryRead(in); n != 1 || err != nil || string(in[0].Buf) != "abcd" || in[0].TOS != 2 {
			t.Errorf("TryRead: %d, %v, %q, %#x", n, err, in[0].Buf, in[0].TOS)
		}
		if cb.Limits().RecvBuffer < 64<<10 {
			t.Errorf("receive buffer of %d bytes", cb.Limits().RecvBuffer)
		}
		cb.Close()
		if _, err := cb.Read(in); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after close: %v", err)
		}
	})
}

func TestCutAndForge(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f, a, b := sockets(t)
		heal := f.Cut(addrA, addrB)
		say(t, a, addrB, 0, 3)
		say(t, b, addrA, 0, 1)
		if got := hear(t, a); got != "0" {
			t.Errorf("the other way: %q", got)
		}
		heal()
		say(t, a, addrB, 3, 1)
		if got := hear(t, b); got != "3" {
			t.Errorf("healed: %q", got)
		}
		p := wire.Packet{Opcode: wire.RCSendOnly, DestQP: 0x123456, PSN: 7, PKey: 0xFFFF, Payload: []byte("hi")}
		strange := netip.MustParseAddr("10.0.0.77")
		f.ForgeMarked(strange, addrB, p.AppendTo(nil), 3)
		var buf [100]byte
		n, tos, from, err := b.ReadMarked(buf[:])
		if err != nil || tos != 3 || from.String() != "10.0.0.77:4791" {
			t.Fatal(tos, from, err)
		}
		flow := wire.NewFlow(netip.AddrPortFrom(strange, wire.Port), netip.AddrPortFrom(addrB, wire.Port))
		if _, ok := flow.Check(buf[:n], 0); !ok {
			t.Error("a forged packet has a wrong checksum")
		}
		if s := f.Stats(); s.Injected != 1 || s.Dropped != 3 {
			t.Errorf("%+v", s)
		}
	})
}

// A capture has what the devices sent and what arrived, and reads back.
func TestCapture(t *testing.T) {
	var file bytes.Buffer
	t.Run("Write", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, a, b := sockets(t)
			f.Capture(&file)
			f.DropNth(addrA, addrB, 2)
			f.Rule(rdmatest.Rule{From: addrB, Flip: -1})
			say(t, a, addrB, 0, 3)
			say(t, b, addrA, 0, 1) // altered
			f.Forge(addrA, addrB, []byte("forged......"))
			hear(t, b)
		})
	})
	r, err := wire.NewPcapReader(&file)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		_, frame, err := r.Next()
		if err != nil {
			break
		}
		d, ok := wire.ParseFrame(frame)
		if !ok || d.Src.Addr() != addrA || d.Dst.Addr() != addrB {
			t.Errorf("frame %x", frame)
		}
		got = append(got, strings.TrimSpace(string(d.Payload[1:])))
	}
	if s := strings.Join(got, " "); s != "0 2" {
		t.Errorf("captured %q", s)
	}
}

// VERBENA_PCAP_DIR has what devices send, a file for each fabric.
func TestCaptureDir(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(rdmatest.PcapDirEnv, dir)
	t.Run("a test/with a name", func(t *testing.T) {
		_, a, _ := sockets(t)
		say(t, a, addrB, 0, 1)
	})
	t.Run("devices", func(t *testing.T) { rdmatest.QPPair(t, verbs.QPConfig{}) })
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	const header, connect = 24, 3 * (16 + 14 + 20 + 8 + 280) // REQ, REP, RTU
	for _, f := range files {
		i, err := f.Info()
		if err != nil || !strings.HasPrefix(f.Name(), "TestCaptureDir_") || !strings.HasSuffix(f.Name(), ".pcap") {
			t.Fatal(f.Name(), err)
		}
		devices := strings.Contains(f.Name(), "devices")
		if devices && i.Size() < header+connect || !devices && i.Size() != header {
			t.Errorf("%s has %d bytes", f.Name(), i.Size())
		}
	}
}
