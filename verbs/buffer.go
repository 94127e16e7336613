package verbs

import (
	"fmt"
	"syscall"
)

// Buffer is page-aligned memory outside the Go heap, for I/O. The garbage collector
// neither moves nor frees nor scans it; do not store Go pointers in it.
//
// (Elsewhere than on Linux it is ordinary aligned memory, which the MRs pin.)
type Buffer struct {
	object
	b []byte
	m mapping
}

// BufferOptions; nil or zero: 4 KiB pages, no guard, inherited by fork as usual.
type BufferOptions struct {
	HugePages bool // fails if there are none
	Guard     bool // inaccessible pages on both sides: overruns fault
	DontFork  bool
}

// maxBuffer keeps sums of sizes and pages in range; no address space is larger.
const maxBuffer = 1 << 47

// AllocBuffer maps n bytes, which begin on a page; the pages are not shared with other
// memory. The contents are zero. Pages come when they are touched. EINVAL: n is not
// positive.
func AllocBuffer(n int, o *BufferOptions) (*Buffer, error) {
	const op = "allocate buffer"
	if o == nil {
		o = &BufferOptions{}
	}
	object := fmt.Sprintf("%d bytes", n)
	switch {
	case n <= 0:
		return nil, invalid(op, nil, object, "the size must be positive")
	case uint64(n) > maxBuffer:
		return nil, opError(op, nil, object, syscall.ENOMEM)
	case o.HugePages && o.Guard:
		return nil, invalid(op, nil, object, "HugePages and Guard exclude each other")
	}
	m, b, err := mapBuffer(n, o)
	if err != nil {
		e := &OpError{Op: op, Object: object, Err: err}
		if o.HugePages {
			e.Hint = "huge pages: see /proc/sys/vm/nr_hugepages"
		}
		return nil, e
	}
	buf := &Buffer{b: b[:n:n], m: m}
	buf.begin(nil, buf.describe, func() error { return opError("close buffer", nil, buf.describe(), buf.m.unmap()) })
	return buf, nil
}

func (b *Buffer) describe() string { return fmt.Sprintf("buffer of %d bytes", len(b.b)) }

// Bytes gives the memory, nil after Close. Slices of it must not be used after Close:
// the addresses stay reserved for a while and inaccessible, so that a late use faults and
// does not hit other memory.
func (b *Buffer) Bytes() []byte {
	if b == nil || b.name == nil || b.closed() {
		return nil
	}
	return b.b
}

// Close unmaps, as soon as no MR holds the buffer.
func (b *Buffer) Close() error {
	if b == nil || b.name == nil {
		return opError("close buffer", nil, "", errNil)
	}
	return b.close(nil, nil)
}
