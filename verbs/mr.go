package verbs

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// MR is registered memory (struct ibv_mr).
type MR struct {
	object
	pd     *PD
	d      driver.MR
	b      []byte // nil: not memory of this process
	n      int
	base   uint64 // address of the first byte in requests
	access ib.Access
	lkey   ib.LKey
	rkey   ib.RKey
	handle uint64
	self   *MR     // see MW.self
	buf    *Buffer // that holds b
	owned  bool    // buf was made for this MR
	pin    runtime.Pinner
}

func (m *MR) describe() string {
	return fmt.Sprintf("MR of %d bytes (%v)", m.n, m.access)
}

const (
	opRegister   = "register memory"
	remoteAccess = ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic
	// Bits 20 to 29 are optional: devices that do not know one ignore it.
	optionalAccess ib.Access = 0x3FF00000
	knownAccess              = ib.LocalWrite | remoteAccess | ib.MWBind | ib.ZeroBased | ib.OnDemand |
		ib.HugeTLB | ib.FlushGlobal | ib.FlushPersistent | optionalAccess
)

// checkAccess refuses rights that contradict one another or that nobody knows.
func checkAccess(d *Device, a ib.Access) error {
	switch {
	case a&^knownAccess != 0:
		return fmt.Errorf("unknown access bits %#x: %w", uint32(a&^knownAccess), syscall.EINVAL)
	case a&(ib.RemoteWrite|ib.RemoteAtomic) != 0 && a&ib.LocalWrite == 0:
		return fmt.Errorf("%v needs LocalWrite too: a peer cannot write where the owner must not: %w", a, syscall.EINVAL)
	case a&ib.OnDemand != 0 && d.limits.ODP == 0:
		return fmt.Errorf("the device has no on-demand paging: %w (%w)", syscall.EINVAL, errors.ErrUnsupported)
	}
	return nil
}

// Alloc makes a buffer and registers it. The MR owns it: Close frees both. This is
// the usual way to get memory for requests. The contents are zero. It may sleep, as a
// kernel device pins the pages.
func (pd *PD) Alloc(n int, a ib.Access) (*MR, error) {
	if pd == nil || pd.name == nil {
		return nil, opError(opRegister, nil, "", errNil)
	}
	if pd.closed() {
		return nil, opError(opRegister, pd.dev, pd.name(), ErrClosed)
	}
	buf, err := AllocBuffer(n, nil)
	if err != nil {
		return nil, opError(opRegister, pd.dev, "", err)
	}
	m, err := pd.register(&MR{b: buf.b, n: n, access: a, buf: buf, owned: true})
	if err != nil {
		buf.Close()
		return nil, err
	}
	return m, nil
}

// Register registers a buffer (ibv_reg_mr), which may be closed first: the MR holds it.
// A buffer may be registered several times. ENOMEM usually means the limit of locked
// memory; the error then says so and gives the limit.
func (pd *PD) Register(b *Buffer, a ib.Access) (*MR, error) {
	if b == nil || b.name == nil {
		return nil, opError(opRegister, pd.Device(), "", errNil)
	}
	return pd.register(&MR{b: b.b, n: len(b.b), access: a, buf: b})
}

// RegisterBytes registers memory of the Go heap and pins it until the MR is closed.
// The memory shares pages with other objects: prefer Alloc where remote access is
// given. It works as well on memory that is not Go's, which the caller must keep then.
func (pd *PD) RegisterBytes(p []byte, a ib.Access) (*MR, error) {
	if pd == nil || pd.name == nil {
		return nil, opError(opRegister, nil, "", errNil)
	}
	if len(p) == 0 {
		return nil, invalid(opRegister, pd.dev, "", "a region cannot be empty")
	}
	return pd.register(&MR{b: p, n: len(p), access: a})
}

// register completes m.
func (pd *PD) register(m *MR) (*MR, error) {
	if pd == nil || pd.name == nil {
		return nil, opError(opRegister, nil, "", errNil)
	}
	if err := checkAccess(pd.dev, m.access); err != nil {
		return nil, opError(opRegister, pd.dev, m.describe(), err)
	}
	if m.buf != nil && !m.buf.adopt() {
		return nil, opError(opRegister, pd.dev, m.buf.describe(), ErrClosed)
	}
	m.pd = pd
	m.base = uint64(reflect.ValueOf(m.b).Pointer())
	if m.access&ib.ZeroBased != 0 {
		m.base = 0
	}
	if m.buf == nil {
		m.pin.Pin(&m.b[0])
	}
	err := pd.child(opRegister, m.describe(), func(d driver.PD) (err error) {
		// Addresses that begin at zero are an iova of zero, which all devices know.
		m.d, err = d.RegMR(m.b, m.base, m.access&^ib.ZeroBased)
		return err
	})
	if err != nil {
		m.unhold()
		return nil, err
	}
	m.publish()
	return m, nil
}

func (m *MR) publish() {
	m.lkey, m.rkey = m.d.Keys()
	m.handle, m.self = m.d.Handle(), m
	m.begin(m.pd.dev, m.describe, m.destroy)
}

// RegisterDMABuf registers memory of another device (ibv_reg_dmabuf_mr): n bytes from
// off on of the dma-buf fd, which may be closed afterwards. In requests its first byte
// has the address iova. The region has no Bytes.
func (pd *PD) RegisterDMABuf(fd int, off uint64, n int, iova uint64, a ib.Access) (*MR, error) {
	m := &MR{pd: pd, n: n, base: iova, access: a}
	if pd == nil || pd.name == nil {
		return nil, opError(opRegister, nil, "", errNil)
	}
	if err := checkAccess(pd.dev, a); err != nil {
		return nil, opError(opRegister, pd.dev, m.describe(), err)
	}
	if n <= 0 {
		return nil, invalid(opRegister, pd.dev, m.describe(), "the size must be positive")
	}
	err := pd.child(opRegister, m.describe(), func(d driver.PD) (err error) {
		r, ok := d.(driver.DMABufRegistrar)
		if !ok {
			return fmt.Errorf("dma-buf: %w", errors.ErrUnsupported)
		}
		m.d, err = r.RegDMABuf(fd, off, n, iova, a)
		return err
	})
	if err != nil {
		return nil, err
	}
	m.publish()
	return m, nil
}

// destroy runs when the region's rights are gone already.
func (m *MR) destroy() error {
	err := m.unhold()
	if e := m.pd.drop(); err == nil {
		err = e
	}
	return err
}

// unhold lets the memory go.
func (m *MR) unhold() error {
	if m.buf == nil {
		m.pin.Unpin()
		return nil
	}
	return m.buf.drop()
}

// PD gives the domain.
func (m *MR) PD() *PD {
	if m == nil {
		return nil
	}
	return m.pd
}

// Bytes gives the memory; nil after Close, and if it is not memory of this process.
func (m *MR) Bytes() []byte {
	if m == nil || m.name == nil || m.closed() {
		return nil
	}
	return m.b
}

// Len gives the size in bytes.
func (m *MR) Len() int {
	if m == nil {
		return 0
	}
	return m.n
}

// LKey and RKey give the keys. They need not be equal, and RKey may be 0 without remote
// access.
func (m *MR) LKey() ib.LKey {
	if m == nil {
		return 0
	}
	return m.lkey
}

// RKey: see LKey.
func (m *MR) RKey() ib.RKey {
	if m == nil {
		return 0
	}
	return m.rkey
}

// Access gives the rights that were asked for.
func (m *MR) Access() ib.Access {
	if m == nil {
		return 0
	}
	return m.access
}

// SGE names n bytes from off on as local memory of a request. Like slicing, it
// panics if they are not inside the region. It does not allocate.
func (m *MR) SGE(off, n int) SGE {
	if off|n < 0 || off > m.n-n || uint64(n) > 1<<32-1 {
		panicBounds(m, off, n)
	}
	return SGE{mr: m, addr: m.base + uint64(off), len: uint32(n), lkey: m.lkey}
}

// Remote names n bytes from off on for a peer. It panics like SGE, and if the
// region gives no remote access.
func (m *MR) Remote(off, n int) ib.Remote {
	if off|n < 0 || off > m.n-n || uint64(n) > 1<<32-1 {
		panicBounds(m, off, n)
	}
	if m.access&remoteAccess == 0 {
		panic("verbs: Remote of a memory region without remote access")
	}
	return ib.Remote{Addr: m.base + uint64(off), RKey: m.rkey, Len: uint32(n)}
}

func panicBounds(m *MR, off, n int) {
	panic(fmt.Sprintf("verbs: %d bytes from %d on are outside of a memory region of %d bytes", n, off, m.n))
}

// Close deregisters (ibv_dereg_mr). When it returns, no device touches the memory
// any more; requests in flight that name it fail.
func (m *MR) Close() error {
	if m == nil || m.name == nil {
		return opError("close mr", nil, "", errNil)
	}
	return m.close(nil, func() error {
		err := m.fail("close mr", m.d.Close())
		if m.owned {
			m.buf.Close()
		}
		return err
	})
}

// SGE is a piece of local memory of a request, made by MR.SGE. The zero SGE is no
// memory.
type SGE struct {
	mr   *MR // whose domain, rights and state the post checks
	addr uint64
	len  uint32
	lkey ib.LKey
}

// Len gives the number of bytes.
func (s SGE) Len() int { return int(s.len) }
