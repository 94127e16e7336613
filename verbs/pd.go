package verbs

import (
	"sync"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// PD is a protection domain: memory and queue pairs of different domains do not
// mix. That is checked when a request is posted.
type PD struct {
	object
	d   driver.PD
	raw *MR // of RawSGE

	mu sync.Mutex // one call of d at a time
}

func (pd *PD) describe() string { return "PD" }

// Device gives the device, nil for nil.
func (pd *PD) Device() *Device {
	if pd == nil {
		return nil
	}
	return pd.dev
}

// child runs a call that makes an object of the domain. Such an object keeps both the
// domain and the device.
func (pd *PD) child(op, object string, f func(driver.PD) error) error {
	if pd == nil || pd.name == nil {
		return opError(op, nil, object, errNil)
	}
	d := pd.dev
	if !pd.adopt() {
		return opError(op, d, object, ErrClosed)
	}
	if !d.adopt() { // cannot be: the domain keeps it
		pd.drop()
		return opError(op, d, object, ErrClosed)
	}
	pd.mu.Lock()
	err := f(pd.d)
	pd.mu.Unlock()
	if err != nil {
		err = d.fail(op, object, err)
		d.drop()
		pd.drop()
	}
	return err
}

// Close lets the domain go, as soon as nothing of it is open (ibv_dealloc_pd).
func (pd *PD) Close() error {
	if pd == nil || pd.name == nil {
		return opError("close pd", nil, "", errNil)
	}
	return pd.close(nil, nil)
}

// RawSGE makes an SGE from numbers, without checks: for zero-based or imported
// regions. It cannot be used for inline data.
func RawSGE(pd *PD, addr uint64, n uint32, k ib.LKey) SGE {
	var raw *MR
	if pd != nil {
		raw = pd.raw
	}
	return SGE{mr: raw, addr: addr, len: n, lkey: k}
}
