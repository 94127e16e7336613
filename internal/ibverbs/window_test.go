//go:build linux && cgo

package ibverbs

import (
	"errors"
	"os"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestWindow binds a window again and again: each bind begins with the key of the one
// before, and a key that was invalidated is void.
func TestWindow(t *testing.T) {
	r := newRig(t)
	w, err := r.pd.(driver.MWAllocator).AllocMW(ib.MWType2)
	if errors.Is(err, errors.ErrUnsupported) && os.Getenv("LAB_GUEST") == "" && os.Getenv(envVariant) == "" { // those have them
		t.Skip("the device has no memory windows: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	mr := must(r.pd.RegMR(r.mem, addressOf(r.mem), ib.LocalWrite|ib.MWBind))(t)
	r.closing("region", mr.Close)
	r.closing("window", w.Close) // before its region
	q := r.cq(1, 10)
	a, b := r.pair(q, nil)
	one := func(what string, at driver.QP, want ib.Status, op ib.WCOpcode, fill func(s *driver.SendSlot)) {
		t.Helper()
		r.send(at, fill)
		c := r.poll(q, 1)[0]
		if c.Status != want || want == ib.StatusSuccess && c.Opcode != op {
			t.Fatalf("%s: %v, %v; want %v", what, c.Status, c.Opcode, want)
		}
	}
	key := w.RKey()
	write := func(what string, k ib.RKey, want ib.Status) {
		t.Helper()
		one(what, a, want, ib.WCWrite, func(s *driver.SendSlot) {
			s.Opcode, s.SGL, s.Addr, s.RKey = ib.OpWrite, append(s.SGL, r.sge(0, 8)), addressOf(r.mem)+4096, k
		})
	}
	for range 300 { // the lowest byte wraps
		next := key.Next()
		one("bind", b, ib.StatusSuccess, ib.WCBindMW, func(s *driver.SendSlot) {
			s.Opcode, s.MW, s.MR, s.RKey = ib.OpBindMW, w.Handle(), mr.Handle(), next
			s.Addr, s.Len, s.Rights = addressOf(r.mem)+4096, 64, ib.RemoteWrite
		})
		if key = next; w.RKey() != key {
			t.Fatalf("the library has key %v, want %v", w.RKey(), key)
		}
		r.mem[0]++
		write("write through the window", key, ib.StatusSuccess)
		if r.mem[4096] != r.mem[0] {
			t.Fatal("it did not arrive")
		}
		one("invalidate", b, ib.StatusSuccess, ib.WCLocalInv, func(s *driver.SendSlot) { s.Opcode, s.RKey = ib.OpLocalInv, key })
	}
	write("write with a key that is void", key, ib.StatusRemAccess)
}
