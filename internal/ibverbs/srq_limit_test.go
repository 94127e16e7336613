//go:build linux && cgo

package ibverbs

import (
	"errors"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestSharedLimit: ibv_create_srq ignores a limit, so a queue is given its own afterwards.
func TestSharedLimit(t *testing.T) {
	r := newRig(t)
	s := must(r.pd.CreateSRQ(driver.SRQConfig{Handle: 0x7_0000_0001, MaxWR: 16, MaxSGE: 1, Limit: 3}))(t)
	r.closing("srq", s.Close)
	if w, l, err := s.Query(); w < 16 || l != 3 || err != nil {
		t.Error(w, l, err)
	}
	q := r.cq(1, 64)
	a, _ := r.pair(q, s)
	for i := range 3 {
		r.recv(s, uint64(100+i), r.sge(1000+100*i, 100))
	}
	r.send(a, func(sl *driver.SendSlot) { sl.ID, sl.Opcode, sl.SGL = 1, ib.OpSend, append(sl.SGL, r.sge(0, 10)) })
	r.poll(q, 2)
	r.wantAsync(ib.EventSRQLimitReached, 0x7_0000_0001)
	if _, l, err := s.Query(); l != 0 || err != nil {
		t.Error(l, err)
	}
}

// TestFakeFullSharedLimit: a queue whose limit cannot be set is none.
func TestFakeFullSharedLimit(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	f.fail("ibv_modify_srq", syscall.ENOMEM, 0)
	defer f.fail("ibv_modify_srq", 0, 0)
	before := f.get("live_srq")
	if _, err := r.pd.CreateSRQ(driver.SRQConfig{MaxWR: 16, MaxSGE: 1, Limit: 3}); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v, want ENOMEM", err)
	}
	if got := f.get("live_srq"); got != before {
		t.Errorf("%d shared queues are left", got-before)
	}
	s := must(r.pd.CreateSRQ(driver.SRQConfig{MaxWR: 16, MaxSGE: 1}))(t) // without a limit there is nothing to set
	r.closing("srq", s.Close)
}
