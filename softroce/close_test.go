package softroce

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Each object is closed while calls on it, and traffic through it, are under way: no
// call hangs, and none touches what is gone.
func TestCloseDuringCalls(t *testing.T) {
	t.Parallel()
	for what, closer := range map[string]func(*Provider, *end) error{
		"queue pair":       func(_ *Provider, e *end) error { return e.qp.Close() },
		"completion queue": func(_ *Provider, e *end) error { return e.cq.Close() },
		"channel":          func(_ *Provider, e *end) error { return e.ch.Close() },
		"domain":           func(_ *Provider, e *end) error { return e.pd.Close() },
		"opening":          func(_ *Provider, e *end) error { return e.ctx.Close() },
		"device":           func(p *Provider, _ *end) error { p.RemoveDevice(); return nil },
		"provider":         func(p *Provider, _ *end) error { return p.Close() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(8) {
				closeDuringCalls(t, seed, closer)
			}
		})
	}
}

func closeDuringCalls(t *testing.T, seed uint64, closer func(*Provider, *end) error) {
	p := newProvider(t, nil)
	a, b := neighbours(t, p)
	m := b.meeting()
	ctx, cancel := context.WithCancel(context.Background())
	var stop atomic.Bool
	var wg sync.WaitGroup
	loop := func(f func()) {
		wg.Go(func() {
			for !stop.Load() {
				f()
			}
		})
	}
	// One goroutine posts, one completes, as the contract has it; everything else may
	// be asked by anyone.
	loop(func() {
		if slots := a.qp.SendSlots(); len(slots) > 0 {
			w := &slots[0]
			w.Opcode, w.Flags, w.Addr, w.RKey = ib.OpWrite, ib.Signaled, m.Base, m.RKey
			w.SGL = append(w.SGL[:0], a.sge(0, 9000))
			a.qp.CommitSend(1)
		}
		if slots := a.qp.RecvSlots(); len(slots) > 64 {
			slots[0].SGL = append(slots[0].SGL[:0], a.sge(0, 64))
			a.qp.CommitRecv(1)
		}
	})
	loop(func() {
		a.cq.Poll()
		a.cq.Arm(false)
		a.cq.Poll()
		limited, end := context.WithTimeout(ctx, 5*time.Millisecond)
		a.ch.Wait(limited)
		end()
		for {
			if _, ok, err := a.ch.Next(); !ok || err != nil {
				break
			}
		}
	})
	loop(func() {
		a.qp.Query(0)
		a.ctx.QueryPort(1)
		a.ctx.GIDs()
		if mr, err := a.pd.RegMR(make([]byte, 10), 0, ib.LocalWrite); err == nil {
			mr.Close()
		}
		if c, err := a.ctx.CreateCQ(driver.CQConfig{Entries: 1, Channel: a.ch}); err == nil {
			if q, err := a.pd.CreateQP(driver.QPConfig{Type: ib.RC, SendCQ: c, RecvCQ: c}); err == nil {
				q.Close()
			}
			c.Close()
		}
	})
	r := rand.New(rand.NewPCG(seed, seed))
	time.Sleep(time.Duration(r.IntN(int(2 * time.Millisecond))))
	if err := closer(p, a); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	time.Sleep(time.Millisecond)
	stop.Store(true)
	cancel()
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatalf("seed %d: a call hangs", seed)
	}
	for _, e := range []*end{a, b} {
		e.qp.Close()
		e.cq.Close()
		e.ch.Close()
		e.ctx.Close()
	}
	p.Close()
}
