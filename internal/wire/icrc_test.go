package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"testing"
)

var (
	flow4Test = NewFlow(netip.MustParseAddrPort("10.9.0.3:55922"), netip.MustParseAddrPort("10.9.0.2:4791"))
	flow6Test = NewFlow(netip.MustParseAddrPort("[fd00:9::3]:53897"), netip.MustParseAddrPort("[fd00:9::2]:4791"))
)

// slowICRC computes the ICRC by writing down all bytes, masked as annex A17.3.3 says.
func slowICRC(src, dst netip.AddrPort, b []byte, id, flags uint16) uint32 {
	all := []byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}
	be := binary.BigEndian
	udp := uint16(8 + len(b))
	if src.Addr().Is4() {
		all = append(all, 0x45, 0xFF)
		all = be.AppendUint16(all, udp+20)
		all = be.AppendUint16(all, id)
		all = be.AppendUint16(all, flags)
		all = append(all, 0xFF, 17, 0xFF, 0xFF)
	} else {
		all = append(all, 0x6F, 0xFF, 0xFF, 0xFF)
		all = be.AppendUint16(all, udp)
		all = append(all, 17, 0xFF)
	}
	all = append(all, src.Addr().AsSlice()...)
	all = append(all, dst.Addr().AsSlice()...)
	all = be.AppendUint16(all, src.Port())
	all = be.AppendUint16(all, dst.Port())
	all = be.AppendUint16(all, udp)
	all = append(all, 0xFF, 0xFF)
	at := len(all)
	all = append(all, b[:len(b)-ICRCLen]...)
	all[at+4] = 0xFF
	return crc32.ChecksumIEEE(all)
}

func randomFlow(r *rand.Rand, v6 bool) (src, dst netip.AddrPort) {
	addr := func() netip.Addr {
		var a [16]byte
		for i := range a {
			a[i] = byte(r.Uint32())
		}
		if v6 {
			return netip.AddrFrom16(a)
		}
		return netip.AddrFrom4([4]byte(a[:]))
	}
	return netip.AddrPortFrom(addr(), uint16(r.Uint32())), netip.AddrPortFrom(addr(), Port)
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// Put and Check agree with the long way for all lengths that matter, for random flows
// and identifications, with the don't-fragment flag set and cleared.
func TestICRC(t *testing.T) {
	t.Parallel()
	const seed = 47910
	r := rand.New(rand.NewPCG(seed, 0))
	lengths := []int{16, 20, 80, 255, 256, 257, 268, 272, 1072, 4095, 4112, 4144, 4156, 9000, 65000, MaxLen - 1, MaxLen}
	for range 300 {
		lengths = append(lengths, 16+r.IntN(4200))
	}
	for _, n := range lengths {
		for _, v6 := range []bool{false, true} {
			src, dst := randomFlow(r, v6)
			b, id, hint := randomBytes(r, n), uint16(r.Uint32()), uint16(r.Uint32())
			f := NewFlow(src, dst)
			sum := slowICRC(src, dst, b, id, dontFragment)
			f.Put(b, id)
			where := fmt.Sprintf("seed %d: %v to %v, %d bytes, id %#x, hint %#x", seed, src, dst, n, id, hint)
			if got := binary.LittleEndian.Uint32(b[n-4:]); got != sum {
				t.Fatalf("%s: ICRC %08x, want %08x", where, got, sum)
			}
			if v6 {
				id = 0
			}
			for _, h := range []uint16{id, hint} {
				if got, ok := f.Check(b, h); !ok || got != id {
					t.Fatalf("%s: Check gives %#x, %v", where, got, ok)
				}
			}
			if v6 {
				b[n-1] ^= 1
				if _, ok := f.Check(b, 0); ok {
					t.Fatalf("%s: one bit more is not seen", where)
				}
				continue
			}
			binary.LittleEndian.PutUint32(b[n-4:], slowICRC(src, dst, b, id, 0))
			if got, ok := f.Check(b, hint); !ok || got != id {
				t.Fatalf("%s: without don't-fragment Check gives %#x, %v", where, got, ok)
			}
			// Any other flag or a fragment offset is not taken.
			for _, flags := range []uint16{0x2000, 0x6000, 0x8000, 0x4001, 0x0001, 0x4100} {
				binary.LittleEndian.PutUint32(b[n-4:], slowICRC(src, dst, b, id, flags))
				if _, ok := f.Check(b, hint); ok {
					t.Fatalf("%s: taken with flags %#x", where, flags)
				}
			}
		}
	}
}

// Congestion marks are not covered; everything else of the packet is.
func TestICRCCoverage(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	for _, f := range []Flow{flow4Test, flow6Test} {
		b := randomBytes(r, 80)
		f.Put(b, 0)
		for i := range len(b) * 8 {
			b[i/8] ^= 1 << (i % 8)
			id, ok := f.Check(b, 0)
			if covered := i/8 != 4; covered == (ok && id == 0) {
				t.Errorf("bit %d of byte %d: covered %v", i%8, i/8, !covered)
			}
			b[i/8] ^= 1 << (i % 8)
		}
	}
}

// All identifications are found, whatever is guessed.
func TestICRCAllIDs(t *testing.T) {
	t.Parallel()
	b := randomBytes(rand.New(rand.NewPCG(7, 8)), 100)
	for i := range 1 << 16 {
		id := uint16(i)
		flow4Test.Put(b, id)
		if got, ok := flow4Test.Check(b, id+1); !ok || got != id {
			t.Fatalf("%#x: %#x, %v", id, got, ok)
		}
	}
}

// A corrupted packet passes the blind check with the probability of the 15 bits that
// are given up, and never without an identification.
func TestICRCCorruption(t *testing.T) {
	t.Parallel()
	const seed, tries = 1, 1 << 19
	r := rand.New(rand.NewPCG(seed, 0))
	b4, b6 := randomBytes(r, 200), randomBytes(r, 200)
	flow4Test.Put(b4, 1)
	flow6Test.Put(b6, 0)
	accepted := 0
	for range tries {
		at := 8 + r.IntN(200-12)
		x := r.Uint32() | 1
		flip := func(b []byte) {
			binary.LittleEndian.PutUint32(b[at:], binary.LittleEndian.Uint32(b[at:])^x)
		}
		flip(b4)
		flip(b6)
		if _, ok := flow4Test.Check(b4, 1); ok {
			accepted++
		}
		if _, ok := flow6Test.Check(b6, 0); ok {
			t.Fatalf("seed %d: %#x at %d is not seen on IPv6", seed, x, at)
		}
		flip(b4)
		flip(b6)
	}
	// 2^19 × 2^-15 = 16 are expected.
	if t.Logf("%d of %d", accepted, tries); accepted > 40 {
		t.Errorf("seed %d: %d of %d corrupted packets pass", seed, accepted, tries)
	}
}

func TestFlowInvalid(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParseAddrPort("10.0.0.1:4791"), netip.MustParseAddrPort("[fd00::1]:4791")
	for _, f := range []Flow{{}, NewFlow(v4, v6), NewFlow(v6, v4), NewFlow(v4, netip.AddrPort{}), NewFlow(netip.AddrPort{}, v6)} {
		b := make([]byte, 100)
		f.Put(b, 1)
		if [100]byte(b) != [100]byte{} || f.Valid() {
			t.Errorf("%+v: is used", f)
		}
		if _, ok := f.Check(b, 1); ok {
			t.Errorf("%+v: takes a packet", f)
		}
	}
	mapped := netip.AddrPortFrom(netip.AddrFrom16(v4.Addr().As16()), 4791)
	if NewFlow(mapped, mapped) != NewFlow(v4, v4) {
		t.Error("a mapped address is not IPv4")
	}
	zone := netip.AddrPortFrom(v6.Addr().WithZone("eth0"), 4791)
	if NewFlow(zone, zone) != NewFlow(v6, v6) {
		t.Error("a zone counts")
	}
	for _, n := range []int{0, 1, 15, MaxLen + 1} {
		b := make([]byte, n)
		flow4Test.Put(b, 1)
		if _, ok := flow4Test.Check(b, 1); ok {
			t.Errorf("a packet of %d bytes is right", n)
		}
	}
}

// Running the register backwards undoes running it forwards, for all lengths.
func TestRewind(t *testing.T) {
	t.Parallel()
	r, forward := uint32(0xC0FFEE11), uint32(0xC0FFEE11)
	for n := range 1 << 16 {
		if got := rewind(forward, n); got != r {
			t.Fatalf("%d bytes: %08x, want %08x", n, got, r)
		}
		if back8(forward>>8^slices[0][forward&0xFF]) != forward {
			t.Fatalf("%08x: one byte forwards and back", forward)
		}
		forward = forward>>8 ^ slices[0][forward&0xFF]
	}
	if s := advance(^uint32(0), []byte{255, 255, 255, 255, 255, 255, 255, 255}); s != afterOnes {
		t.Errorf("after the ones: %08x", s)
	}
}

func TestICRCAllocs(t *testing.T) {
	b := make([]byte, 4144)
	for _, f := range []Flow{flow4Test, flow6Test} {
		if n := testing.AllocsPerRun(100, func() {
			f.Put(b, 1)
			f.Check(b, 1)
			f.Check(b, 2)
			f.Check(b[:3], 2)
			b[50]++
			f.Check(b, 2)
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
	src, dst := netip.MustParseAddrPort("10.0.0.1:4791"), netip.MustParseAddrPort("10.0.0.2:4791")
	if n := testing.AllocsPerRun(100, func() {
		f := NewFlow(src, dst)
		f.Put(b, 1)
	}); n != 0 {
		t.Errorf("NewFlow: %v allocations", n)
	}
}

func BenchmarkICRC(b *testing.B) {
	for _, n := range []int{16, 80, 1072, 4144} {
		buf := make([]byte, n)
		run := func(name string, f Flow, hint uint16, work func(f *Flow, hint uint16)) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				f.Put(buf, 7)
				b.SetBytes(int64(n))
				for b.Loop() {
					work(&f, hint)
				}
			})
		}
		check := func(f *Flow, hint uint16) {
			if _, ok := f.Check(buf, hint); !ok {
				b.Fatal("wrong")
			}
		}
		run("Put4", flow4Test, 0, func(f *Flow, _ uint16) { f.Put(buf, 0) })
		run("Put6", flow6Test, 0, func(f *Flow, _ uint16) { f.Put(buf, 0) })
		run("CheckHint", flow4Test, 7, check)
		run("CheckBlind", flow4Test, 8, check)
		run("Check6", flow6Test, 0, check)
		run("ChecksumIEEE", flow4Test, 0, func(*Flow, uint16) { crc32.ChecksumIEEE(buf) })
	}
}

func BenchmarkNewFlow(b *testing.B) {
	src, dst := netip.MustParseAddrPort("10.0.0.1:4791"), netip.MustParseAddrPort("10.0.0.2:4791")
	for b.Loop() {
		f := NewFlow(src, dst)
		if !f.Valid() {
			b.Fatal("not valid")
		}
	}
}
