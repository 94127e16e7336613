package cm

import (
	"errors"
	"io"
	"iter"
	"maps"
	"net"
	"sync"

	"github.com/verbena-rdma/verbena/verbs"
)

// PerDevice keeps what a program has once for each device: a protection domain, a completion
// queue, memory. A program that listens on a wildcard address, or connects anywhere, knows a
// device only when the first connection comes on it, from Request.Device, Route.Device or
// ID.Device.
//
// All methods may be called from any goroutine.
type PerDevice[T io.Closer] struct {
	make func(*verbs.Device) (T, error)

	mu     sync.Mutex
	m      map[*verbs.Device]T
	closed bool
}

// NewPerDevice gives one that makes what is not there yet with that function. It is called once
// for each device, again after an error, and for one device at a time; it must not call
// methods of the PerDevice.
func NewPerDevice[T io.Closer](make func(*verbs.Device) (T, error)) *PerDevice[T] {
	return &PerDevice[T]{make: make, m: map[*verbs.Device]T{}}
}

// Get gives what there is for a device; the first call makes it. After Close the error is
// net.ErrClosed. syscall.EINVAL: the device is nil.
func (p *PerDevice[T]) Get(d *verbs.Device) (T, error) {
	var none T
	if p == nil || p.make == nil || d == nil {
		return none, wrong("cm: PerDevice: no device, or not made by NewPerDevice")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return none, net.ErrClosed
	}
	if v, ok := p.m[d]; ok {
		return v, nil
	}
	v, err := p.make(d)
	if err != nil {
		return none, err
	}
	p.m[d] = v
	return v, nil
}

// All gives what there is now, in no order. The body may call Get.
func (p *PerDevice[T]) All() iter.Seq2[*verbs.Device, T] {
	if p == nil {
		return func(func(*verbs.Device, T) bool) {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.All(maps.Clone(p.m))
}

// Close closes what there is, and gives the errors of that together. Connections that use it
// may stand: see verbs about closing in any order. A second call does nothing.
func (p *PerDevice[T]) Close() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	all := p.m
	p.m, p.closed = nil, true
	p.mu.Unlock()
	var errs []error
	for _, v := range all {
		errs = append(errs, v.Close())
	}
	return errors.Join(errs...)
}
