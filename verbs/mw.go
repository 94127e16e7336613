package verbs

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// MW is a memory window: a key for a peer that can be given and taken back fast (struct
// ibv_mw). A request binds it to a piece of a region: see BindMW.
type MW struct {
	object
	pd     *PD
	d      driver.MW
	typ    ib.MWType
	handle uint64
	self   *MW // kept instead of a request's pointer, so that requests need not be on the heap

	mu  sync.Mutex
	key ib.RKey
	at  ib.Remote // the last bind
}

// ErrWindow: a bind names no window of type 2, or no bytes.
var ErrWindow error = &dataError{"bind names no memory window of type 2, or no memory", syscall.EINVAL}

// AllocMW makes a memory window (ibv_alloc_mw). Only those of type 2 can be bound. Devices
// without them give errors.ErrUnsupported.
func (pd *PD) AllocMW(t ib.MWType) (*MW, error) {
	w := &MW{pd: pd, typ: t}
	w.self = w
	err := pd.child("allocate mw", t.String(), func(d driver.PD) (err error) {
		a, ok := d.(driver.MWAllocator)
		if !ok {
			return fmt.Errorf("memory window: %w", errors.ErrUnsupported)
		}
		w.d, err = a.AllocMW(t)
		return err
	})
	if err != nil {
		return nil, err
	}
	w.key, w.handle = w.d.RKey(), w.d.Handle()
	w.begin(pd.dev, func() string { return "MW" }, pd.drop)
	return w, nil
}

// RKey gives the key of the last bind that was posted.
func (w *MW) RKey() ib.RKey {
	if w == nil || w.name == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.key
}

// Remote names the memory of the last bind that was posted, with its key, for the peer;
// it is zero before.
func (w *MW) Remote() ib.Remote {
	if w == nil || w.name == nil {
		return ib.Remote{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at
}

// Close frees the window (ibv_dealloc_mw). Its key is void when it returns.
func (w *MW) Close() error {
	if w == nil || w.name == nil {
		return opError("close mw", nil, "", errNil)
	}
	return w.close(nil, func() error { return w.fail("close mw", w.d.Close()) })
}

// postBind posts a bind, alone: while the provider looks at window and region neither can
// go, and the next bind of the window begins with the key of this one. qp.mu is held.
func (qp *QP) postBind(wr *SendWR) error {
	if wr.MW == nil || wr.MW.self == nil || wr.MW.typ != ib.MWType2 || wr.Local.mr == nil || wr.Local.mr.self == nil || wr.Local.len == 0 {
		return ErrWindow
	}
	w, m := wr.MW.self, wr.Local.mr.self
	switch {
	case w.pd != qp.pd:
		return ErrPDMismatch
	case !w.enter():
		return ErrClosed
	}
	defer w.leave()
	if !m.enter() {
		return ErrClosed
	}
	defer m.leave()
	if err := qp.postOne(wr); err != nil {
		return err
	}
	w.mu.Lock()
	w.key = w.key.Next()
	w.at = ib.Remote{Addr: wr.Local.addr, RKey: w.key, Len: wr.Local.len}
	if wr.Rights&ib.ZeroBased != 0 {
		w.at.Addr = 0
	}
	w.mu.Unlock()
	return nil
}

// writeBind checks what is particular to a bind and writes it into a slot.
func (qp *QP) writeBind(slot *driver.SendSlot, wr *SendWR) error {
	const may = remoteAccess | ib.ZeroBased
	m := wr.Local.mr
	if wr.Rights&^may != 0 || m.access&ib.MWBind == 0 {
		return ErrAccess
	}
	if err := wr.Local.check(qp.pd, wr.Rights&(ib.RemoteWrite|ib.RemoteAtomic) != 0); err != nil {
		return err
	}
	slot.MW, slot.MR = wr.MW.handle, m.handle
	slot.Addr, slot.Len, slot.Rights = wr.Local.addr, wr.Local.len, wr.Rights
	slot.RKey = wr.MW.self.RKey().Next()
	return nil
}
