package scripted

import (
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// PD is a protection domain.
type PD struct{ object }

var (
	_ driver.PD              = (*PD)(nil)
	_ driver.MWAllocator     = (*PD)(nil)
	_ driver.DMABufRegistrar = (*PD)(nil)
)

// MR is a memory region.
type MR struct {
	object
	lkey ib.LKey
	rkey ib.RKey
	B    []byte
	IOVA uint64
	A    ib.Access
}

// made starts a call that makes an object, and counts it if make succeeds.
func (pd *PD) made(op, kind string, o *object, parents ...*object) error {
	err := pd.begin(op)
	defer pd.end()
	if err != nil {
		return err
	}
	o.init(pd.p, kind, pd.ctx, append(parents, &pd.object)...)
	pd.p.mu.Lock()
	defer pd.p.mu.Unlock()
	o.open()
	return nil
}

func (pd *PD) nextKey() uint32 {
	pd.p.mu.Lock()
	defer pd.p.mu.Unlock()
	pd.p.keys++
	return pd.p.keys << 8
}

// RegMR registers memory.
func (pd *PD) RegMR(p []byte, iova uint64, a ib.Access) (driver.MR, error) {
	if len(p) == 0 {
		pd.p.violate("pd: RegMR of nothing")
		return nil, syscall.EINVAL
	}
	m := &MR{B: p, IOVA: iova, A: a}
	if err := pd.made("reg mr", "mr", &m.object); err != nil {
		return nil, err
	}
	k := pd.nextKey()
	m.lkey, m.rkey = ib.LKey(k), ib.RKey(k|1)
	return m, nil
}

// RegDMABuf registers memory of nobody.
func (pd *PD) RegDMABuf(_ int, _ uint64, _ int, iova uint64, a ib.Access) (driver.MR, error) {
	m := &MR{IOVA: iova, A: a}
	if err := pd.made("reg dmabuf", "mr", &m.object); err != nil {
		return nil, err
	}
	k := pd.nextKey()
	m.lkey, m.rkey = ib.LKey(k), ib.RKey(k|1)
	return m, nil
}

// Keys gives the keys.
func (m *MR) Keys() (ib.LKey, ib.RKey) { return m.lkey, m.rkey }

// Handle gives the number for SendSlot.MR.
func (m *MR) Handle() uint64 { return uint64(m.lkey) }

// Close deregisters.
func (m *MR) Close() error { return m.close() }

// AH is an address handle.
type AH struct {
	object
	handle uint64
	Attr   driver.AHAttr
}

var ahHandles atomic.Uint64

// CreateAH makes an address handle.
func (pd *PD) CreateAH(a driver.AHAttr) (driver.AH, error) {
	h := &AH{handle: ahHandles.Add(1), Attr: a}
	if err := pd.made("create ah", "ah", &h.object); err != nil {
		return nil, err
	}
	return h, nil
}

// Handle gives the number for SendSlot.AH.
func (h *AH) Handle() uint64 { return h.handle }

// Close frees it.
func (h *AH) Close() error { return h.close() }

// MW is a memory window.
type MW struct {
	object
	key ib.RKey
}

// AllocMW makes a window.
func (pd *PD) AllocMW(ib.MWType) (driver.MW, error) {
	w := &MW{}
	if err := pd.made("alloc mw", "mw", &w.object); err != nil {
		return nil, err
	}
	w.key = ib.RKey(pd.nextKey())
	return w, nil
}

// RKey gives the key.
func (w *MW) RKey() ib.RKey { return w.key }

// Handle gives the number for SendSlot.MW.
func (w *MW) Handle() uint64 { return uint64(w.key) }

// Close frees it.
func (w *MW) Close() error { return w.close() }

// Close frees the domain.
func (pd *PD) Close() error { return pd.close() }
