package softroce

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// pd is a protection domain: a number that regions and queue pairs have in common.
type pd struct {
	ctx    *deviceContext
	domain mem.Domain
	closed atomic.Bool
}

var _ driver.PD = (*pd)(nil)

func newPD(c *deviceContext) (*pd, error) {
	if err := c.d.acquire(kindPD); err != nil {
		return nil, err
	}
	return &pd{ctx: c, domain: mem.Domain(c.d.domains.Add(1))}, nil
}

func (p *pd) err() error {
	if p.closed.Load() {
		return fmt.Errorf("softroce: protection domain is closed: %w", syscall.EINVAL)
	}
	return p.ctx.err()
}

// CreateSRQ is not there yet.
func (p *pd) CreateSRQ(driver.SRQConfig) (driver.SRQ, error) {
	return nil, fmt.Errorf("softroce: shared receive queue: %w", errors.ErrUnsupported)
}

// CreateAH is not there yet: address handles belong to datagrams.
func (p *pd) CreateAH(driver.AHAttr) (driver.AH, error) {
	return nil, fmt.Errorf("softroce: address handle: %w", errors.ErrUnsupported)
}

// Close frees the domain. Its objects should have been closed.
func (p *pd) Close() error {
	if !p.closed.Swap(true) {
		p.ctx.d.release(kindPD)
	}
	return nil
}

// mr is a memory region.
type mr struct {
	d      *device
	region *mem.Region
	closed atomic.Bool
}

var _ driver.MR = (*mr)(nil)

// RegMR registers p; see driver.PD. Nothing is pinned or copied: the device is this
// process.
func (p *pd) RegMR(b []byte, iova uint64, a ib.Access) (driver.MR, error) {
	if err := p.err(); err != nil {
		return nil, err
	}
	switch {
	case len(b) == 0:
		return nil, fmt.Errorf("softroce: memory region of length 0: %w", syscall.EINVAL)
	case uint64(len(b)) > maxMRSize:
		return nil, fmt.Errorf("softroce: memory region of %d bytes, %d are possible: %w", len(b), uint64(maxMRSize), syscall.EINVAL)
	}
	d := p.ctx.d
	if err := d.acquire(kindMR); err != nil {
		return nil, err
	}
	d.memMu.Lock()
	r, err := d.memory.Register(p.domain, b, iova, a)
	d.memMu.Unlock()
	if err != nil {
		d.release(kindMR)
		return nil, fmt.Errorf("softroce: memory region of %d bytes at %#x with %v: %w (%w)", len(b), iova, a, err, syscall.EINVAL)
	}
	return &mr{d: d, region: r}, nil
}

func (m *mr) Keys() (ib.LKey, ib.RKey) { return m.region.LKey(), m.region.RKey() }

// Handle gives the key: with it a bind names the region.
func (m *mr) Handle() uint64 { return uint64(m.region.LKey()) }

// Close takes the region away. When it returns the device does not touch the memory
// any more: a packet that was being read or written has been finished.
func (m *mr) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	m.d.memMu.Lock()
	m.d.memory.Remove(m.region)
	m.d.memMu.Unlock()
	for i := 0; !m.region.Idle(); i++ {
		if i < 100 {
			runtime.Gosched()
		} else {
			time.Sleep(10 * time.Microsecond) // a copy is under way on another core
		}
	}
	m.d.release(kindMR)
	return nil
}
