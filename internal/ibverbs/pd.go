//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"unsafe"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// pd is a protection domain (struct ibv_pd).
type pd struct {
	d *deviceContext
	c *C.struct_abi_pd
}

var (
	_ driver.PD              = (*pd)(nil)
	_ driver.DMABufRegistrar = (*pd)(nil)
)

// AllocPD makes a protection domain (ibv_alloc_pd).
func (d *deviceContext) AllocPD() (driver.PD, error) {
	if err := d.err(); err != nil {
		return nil, err
	}
	p := &pd{d: d}
	if err := d.fail(C.vb_alloc_pd(d.c, &p.c)); err != nil {
		return nil, err
	}
	d.born()
	return p, nil
}

// Close frees the domain (ibv_dealloc_pd).
func (p *pd) Close() error { return p.d.died(C.vb_dealloc_pd(p.c)) }

// mr is a memory region (struct ibv_mr).
type mr struct {
	d    *deviceContext
	c    *C.struct_abi_mr
	lkey ib.LKey
	rkey ib.RKey
}

// RegMR registers memory (ibv_reg_mr_iova2 if that is needed, else ibv_reg_mr).
func (p *pd) RegMR(b []byte, iova uint64, a ib.Access) (driver.MR, error) {
	if err := p.d.err(); err != nil {
		return nil, err
	}
	m := &mr{d: p.d}
	var l, r C.uint32_t
	addr := C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	if err := p.d.fail(C.vb_reg_mr(p.c, addr, C.size_t(len(b)), C.uint64_t(iova), C.uint32_t(a), &m.c, &l, &r)); err != nil {
		return nil, err
	}
	m.lkey, m.rkey = ib.LKey(l), ib.RKey(r)
	return m, nil
}

// RegDMABuf registers memory of another device (ibv_reg_dmabuf_mr).
func (p *pd) RegDMABuf(fd int, off uint64, n int, iova uint64, a ib.Access) (driver.MR, error) {
	if err := p.d.err(); err != nil {
		return nil, err
	}
	m := &mr{d: p.d}
	var l, r C.uint32_t
	if err := p.d.fail(C.vb_reg_dmabuf(p.c, C.uint64_t(off), C.size_t(n), C.uint64_t(iova), C.int(fd), C.uint32_t(a), &m.c, &l, &r)); err != nil {
		return nil, err
	}
	m.lkey, m.rkey = ib.LKey(l), ib.RKey(r)
	return m, nil
}

func (m *mr) Keys() (ib.LKey, ib.RKey) { return m.lkey, m.rkey }

// Handle gives the address of the library's region, which a bind names.
func (m *mr) Handle() uint64 { return uint64(uintptr(unsafe.Pointer(m.c))) }

// Close takes the region away (ibv_dereg_mr).
func (m *mr) Close() error { return m.d.end(C.vb_dereg_mr(m.c)) }

// ah is an address handle (struct ibv_ah).
type ah struct {
	d *deviceContext
	c *C.struct_abi_ah
}

// CreateAH makes an address handle (ibv_create_ah).
func (p *pd) CreateAH(a driver.AHAttr) (driver.AH, error) {
	if err := p.d.err(); err != nil {
		return nil, err
	}
	h := &ah{d: p.d}
	v := ahIn(&a)
	if err := p.d.fail(C.vb_create_ah(p.c, &v, &h.c)); err != nil {
		return nil, err
	}
	return h, nil
}

func (h *ah) Handle() uint64 { return uint64(uintptr(unsafe.Pointer(h.c))) }

// Close destroys the handle (ibv_destroy_ah).
func (h *ah) Close() error { return h.d.end(C.vb_destroy_ah(h.c)) }

func ahIn(a *driver.AHAttr) (v C.struct_vb_ah_attr) {
	for i, b := range a.DGID {
		v.dgid[i] = C.uint8_t(b)
	}
	v.sgid_index = C.uint8_t(a.SGIDIndex)
	v.flow_label = C.uint32_t(a.FlowLabel)
	v.hop_limit = C.uint8_t(a.HopLimit)
	v.traffic_class = C.uint8_t(a.TrafficClass)
	v.dlid = C.uint16_t(a.DLID)
	v.sl = C.uint8_t(a.SL)
	v.path_bits = C.uint8_t(a.PathBits)
	v.rate = C.uint8_t(a.Rate)
	v.port = C.uint8_t(a.Port)
	if a.Global {
		v.global = 1
	}
	return v
}

func ahOut(v *C.struct_vb_ah_attr) driver.AHAttr {
	return driver.AHAttr{
		DGID:         gidOf(&v.dgid),
		SGIDIndex:    int(v.sgid_index),
		FlowLabel:    uint32(v.flow_label),
		HopLimit:     uint8(v.hop_limit),
		TrafficClass: uint8(v.traffic_class),
		DLID:         ib.LID(v.dlid),
		SL:           uint8(v.sl),
		PathBits:     uint8(v.path_bits),
		Rate:         ib.Rate(v.rate),
		Global:       v.global != 0,
		Port:         int(v.port),
	}
}
