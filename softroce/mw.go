package softroce

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// mw is a memory window of type 2B.
type mw struct {
	d      *device
	handle uint64
	w      *mem.Window
	closed atomic.Bool
}

var _ driver.MWAllocator = (*pd)(nil)

// AllocMW makes a memory window. There is type 2 only; its keys can be bound on one queue
// pair at a time.
func (p *pd) AllocMW(t ib.MWType) (driver.MW, error) {
	if err := p.err(); err != nil {
		return nil, err
	}
	if t != ib.MWType2 {
		return nil, fmt.Errorf("softroce: memory window of type %v, there is %v: %w", t, ib.MWType2, syscall.EINVAL)
	}
	d := p.ctx.d
	if err := d.acquire(kindMW); err != nil {
		return nil, err
	}
	d.memMu.Lock()
	defer d.memMu.Unlock()
	d.lastWindow++
	w := &mw{d: d, handle: d.lastWindow, w: d.memory.NewWindow(p.domain)}
	if d.windows == nil {
		d.windows = map[uint64]*mem.Window{}
	}
	d.windows[w.handle] = w.w
	return w, nil
}

func (w *mw) RKey() ib.RKey {
	w.d.memMu.Lock()
	defer w.d.memMu.Unlock()
	return w.w.RKey()
}

func (w *mw) Handle() uint64 { return w.handle }

// Close frees the window. Its key is void when it returns.
func (w *mw) Close() error {
	if w.closed.Swap(true) {
		return nil
	}
	w.d.memMu.Lock()
	delete(w.d.windows, w.handle)
	w.d.memory.RemoveWindow(w.w)
	w.d.memMu.Unlock()
	w.d.release(kindMW)
	return nil
}

// bind does what a request of a queue pair in a domain asks for.
func (d *device) bind(domain mem.Domain, s *driver.SendSlot) mem.Fault {
	d.memMu.Lock()
	defer d.memMu.Unlock()
	w := d.windows[s.MW]
	if w == nil {
		return mem.NoKey
	}
	return d.memory.Bind(w, mem.Bind{
		Domain: domain, LKey: ib.LKey(s.MR), RKey: s.RKey, Addr: s.Addr, Len: int(s.Len), Rights: s.Rights,
	})
}
