package rdmatest_test

import (
	"bytes"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// What hosts of one fabric send to those of another goes over, both ways, and the rules of
// both see it; what is forged goes as well.
func TestUplink(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f, g := rdmatest.NewFabric(t, 1), rdmatest.NewFabric(t, 2)
		a, b := socket(t, f, addrA), socket(t, g, addrB)
		type parcel struct {
			from, to netip.AddrPort
			p        []byte
			tos      uint8
		}
		over := func(out chan parcel) rdmatest.Carry { // it must not call a fabric
			return func(from, to netip.AddrPort, p []byte, tos uint8) { out <- parcel{from, to, bytes.Clone(p), tos} }
		}
		fg, gf := make(chan parcel, 10), make(chan parcel, 10)
		toF, toG := f.Uplink(over(fg)), g.Uplink(over(gf))
		for way, in := range map[chan parcel]rdmatest.Carry{fg: toG, gf: toF} {
			go func() {
				for x := range way {
					in(x.from, x.to, x.p, x.tos)
				}
			}()
			defer close(way)
		}
		lost := g.DropNth(addrA, addrB, 2)
		say(t, a, addrB, 0, 3)
		say(t, b, addrA, 7, 1)
		synctest.Wait()
		if got := hear(t, b); got != "0 2" {
			t.Errorf("over the uplink, the second lost behind it: %q", got)
		}
		if got := hear(t, a); got != "7" {
			t.Errorf("back: %q", got)
		}
		if lost.Hits() != 1 {
			t.Errorf("%d lost", lost.Hits())
		}
		p := wire.Packet{Opcode: wire.RCSendOnly, DestQP: 9, PKey: 0xFFFF}
		f.ForgeMarked(addrA, addrB, p.AppendTo(nil), 2)
		synctest.Wait()
		var buf [100]byte
		if n, tos, from, err := b.ReadMarked(buf[:]); n != wire.BTHLen+wire.ICRCLen || tos != 2 || err != nil || from.String() != "10.0.0.1:4791" {
			t.Errorf("forged: %d bytes, %d, %v, %v", n, tos, from, err)
		}
		if s := f.Stats(); s.NoRoute != 0 || s.Injected != 1 {
			t.Errorf("%+v", s)
		}
	})
}
