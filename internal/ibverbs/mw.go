//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// mw is a memory window (struct ibv_mw).
type mw struct {
	d *deviceContext
	c *C.struct_abi_mw
}

var _ driver.MWAllocator = (*pd)(nil)

// AllocMW makes a memory window (ibv_alloc_mw). Devices without them give
// errors.ErrUnsupported.
func (p *pd) AllocMW(t ib.MWType) (driver.MW, error) {
	if err := p.d.err(); err != nil {
		return nil, err
	}
	if t != ib.MWType1 && t != ib.MWType2 {
		return nil, fmt.Errorf("memory window of type %d: %w", uint8(t), syscall.EINVAL)
	}
	w := &mw{d: p.d}
	if err := p.d.fail(C.vb_alloc_mw(p.c, C.int(t), &w.c)); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *mw) RKey() ib.RKey { return ib.RKey(C.vb_mw_rkey(w.c)) }

// Handle gives the address of the library's window.
func (w *mw) Handle() uint64 { return uint64(uintptr(unsafe.Pointer(w.c))) }

// Close frees the window (ibv_dealloc_mw).
func (w *mw) Close() error { return w.d.end(C.vb_dealloc_mw(w.c)) }
