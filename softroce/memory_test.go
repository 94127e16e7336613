package softroce

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func TestC025_C028_C031_Registration(t *testing.T) {
	t.Parallel()
	ctx := open(t, newProvider(t, nil))
	pd, err := ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	b := make([]byte, 100)
	for name, x := range map[string]struct {
		b      []byte
		iova   uint64
		access ib.Access
		want   error
	}{
		"one byte":            {b[:1], 1, 0, nil},
		"odd address":         {b[3:8], 3, ib.LocalWrite, nil},
		"all rights":          {b, 1 << 40, allAccess, nil},
		"C-026 length 0":      {b[:0], 0, 0, syscall.EINVAL},
		"C-026 nil":           {nil, 0, 0, syscall.EINVAL},
		"C-028 wraps around":  {b, ^uint64(0) - 50, 0, syscall.EINVAL},
		"to the last address": {b, ^uint64(0) - 99, 0, nil},
		"unknown bit 9":       {b, 0, 1 << 9, syscall.EINVAL},
		"unknown bit 31":      {b, 0, 1 << 31, syscall.EINVAL},
		"optional bit 25":     {b, 0, 1 << 25, nil},
		"relaxed ordering":    {b, 0, ib.RelaxedOrdering, nil},
		"huge pages":          {b, 0, ib.HugeTLB, nil},
		"on demand":           {b, 0, ib.OnDemand, syscall.EINVAL},
	} {
		mr, err := pd.RegMR(x.b, x.iova, x.access)
		if !errors.Is(err, x.want) || (err == nil) != (x.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, x.want)
		}
		if err == nil {
			mr.Close()
		}
	}
	if n := ctx.d.objects[kindMR].Load(); n != 0 {
		t.Errorf("%d regions are counted", n)
	}
}

func TestC034_Keys(t *testing.T) {
	t.Parallel()
	ctx := open(t, newProvider(t, nil))
	pd, _ := ctx.AllocPD()
	defer pd.Close()
	b := make([]byte, 100)
	live := map[ib.LKey]driver.MR{}
	recent := []ib.LKey{}
	for i := range 2000 {
		mr, err := pd.RegMR(b, 0, allAccess)
		if err != nil {
			t.Fatal(err)
		}
		l, r := mr.Keys()
		if live[l] != nil || r == 0 {
			t.Fatalf("keys %#x, %#x", uint32(l), uint32(r))
		}
		for _, k := range recent {
			if k == l {
				t.Fatalf("key %#x again at once", uint32(l))
			}
		}
		live[l] = mr
		if i%2 == 1 {
			for k, old := range live {
				old.Close()
				delete(live, k)
				recent = append(recent, k)
				break
			}
			recent = recent[max(0, len(recent)-6):]
		}
	}
	for _, mr := range live {
		mr.Close()
	}
	local, err := pd.RegMR(b, 0, ib.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	if _, r := local.Keys(); r != 0 {
		t.Errorf("remote key %#x without remote rights", uint32(r))
	}
}

// C-035: a peer writes all the time while the region goes away. Once Close has
// returned no byte changes, and the peer is told.
func TestC035_DeregisterUnderWrites(t *testing.T) {
	t.Parallel()
	for range 20 {
		p := newProvider(t, nil)
		a, b := neighbours(t, p)
		region := make([]byte, 256<<10)
		mr, err := b.pd.RegMR(region, 0, ib.LocalWrite|ib.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		_, rkey := mr.Keys()
		for i := range a.mem {
			a.mem[i] = 0xEE
		}
		target := meeting{RKey: rkey}
		last := make(chan ib.Status, 1)
		started := make(chan struct{})
		go func() {
			for i := 0; ; i++ {
				if a.write(&target, len(region), ib.Signaled) != nil {
					last <- ib.StatusSuccess
					return
				}
				if w, _ := a.next(); w == nil || w.Status != ib.StatusSuccess {
					last <- w.Status
					return
				}
				if i == 2 {
					close(started)
				}
			}
		}()
		<-started
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
		for i := range region {
			region[i] = 0x11
		}
		if s := <-last; s != ib.StatusRemAccess {
			t.Errorf("the peer got %v", s)
		}
		if !bytes.Equal(region, bytes.Repeat([]byte{0x11}, len(region))) {
			t.Fatal("written after Close")
		}
		p.Close()
	}
}

// C-036: the same while a READ streams out of it.
func TestC036_DeregisterUnderRead(t *testing.T) {
	t.Parallel()
	for range 20 {
		p := newProvider(t, nil)
		a, b := neighbours(t, p)
		region := bytes.Repeat([]byte{0xAB}, 1<<20)
		mr, err := b.pd.RegMR(region, 0, ib.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		_, rkey := mr.Keys()
		w := &a.qp.SendSlots()[0]
		w.Opcode, w.Flags, w.Addr, w.RKey = ib.OpRead, ib.Signaled, 0, rkey
		w.SGL = append(w.SGL[:0], a.sge(0, len(region)))
		if _, err := a.qp.CommitSend(1); err != nil {
			t.Fatal(err)
		}
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
		clear(region)
		wc, _ := a.next()
		if wc == nil {
			t.Fatal("no completion")
		}
		switch wc.Status {
		case ib.StatusSuccess:
			if !bytes.Equal(a.mem, bytes.Repeat([]byte{0xAB}, len(a.mem))) {
				t.Error("a READ that succeeded has bytes from after Close")
			}
		case ib.StatusRemAccess, ib.StatusRemOp:
		default:
			t.Errorf("status %v", wc.Status)
		}
		p.Close()
	}
}
