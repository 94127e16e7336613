package softroce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// network is a network in memory for these tests: datagrams arrive at once and in
// order, unless hook takes them.
type network struct {
	mu    sync.Mutex
	conns map[netip.AddrPort]*memConn
	// hook sees every datagram and says whether it is delivered. It may change b. It
	// runs on the goroutine that sends, which may have locks of a device; one at a time.
	hookMu sync.Mutex
	hook   func(from, to netip.AddrPort, b []byte, tos *uint8) bool
	sent   atomic.Int64
	// deaf are addresses whose reader is not woken, as if the system had forgotten it.
	deaf map[netip.Addr]bool
}

type datagram struct {
	b    []byte
	tos  uint8
	from netip.AddrPort
}

// memConn is a socket of a network. It implements netio.MarkedConn.
type memConn struct {
	n      *network
	addr   netip.AddrPort
	q      chan datagram
	once   sync.Once
	closed chan struct{}
}

const memQueue = 4096

func newNetwork() *network { return &network{conns: make(map[netip.AddrPort]*memConn)} }

func (n *network) listen(a netip.AddrPort) (net.PacketConn, error) { return n.open(a) }

func (n *network) open(a netip.AddrPort) (*memConn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns[a] != nil {
		return nil, fmt.Errorf("%v: %w", a, syscall.EADDRINUSE)
	}
	c := &memConn{n: n, addr: a, q: make(chan datagram, memQueue), closed: make(chan struct{})}
	n.conns[a] = c
	return c, nil
}

func (n *network) setHook(f func(from, to netip.AddrPort, b []byte, tos *uint8) bool) {
	n.mu.Lock()
	n.hook = f
	n.mu.Unlock()
}

func (c *memConn) WriteMarked(b []byte, tos uint8, to net.Addr) (int, error) {
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	default:
	}
	dst := to.(*net.UDPAddr).AddrPort()
	dst = netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port())
	c.n.mu.Lock()
	p, hook := c.n.conns[dst], c.n.hook
	c.n.mu.Unlock()
	c.n.sent.Add(1)
	d := datagram{b: slices.Clone(b), tos: tos, from: c.addr}
	deliver := p != nil
	if hook != nil {
		c.n.hookMu.Lock()
		deliver = hook(c.addr, dst, d.b, &d.tos) && deliver
		c.n.hookMu.Unlock()
	}
	if !deliver {
		return len(b), nil
	}
	select {
	case p.q <- d:
	default: // a full socket buffer
	}
	return len(b), nil
}

func (c *memConn) ReadMarked(b []byte) (int, uint8, net.Addr, error) {
	q := c.q
	if c.n.deaf[c.addr.Addr()] {
		q = nil
	}
	select {
	case d := <-q:
		return copy(b, d.b), d.tos, net.UDPAddrFromAddrPort(d.from), nil
	case <-c.closed:
		return 0, 0, nil, net.ErrClosed
	}
}

func (c *memConn) TryReadFrom(b []byte) (int, net.Addr, error) {
	select {
	case d := <-c.q:
		return copy(b, d.b), net.UDPAddrFromAddrPort(d.from), nil
	default:
		return 0, nil, nil
	}
}

func (c *memConn) WriteTo(b []byte, to net.Addr) (int, error) { return c.WriteMarked(b, 0, to) }

func (c *memConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, _, a, err := c.ReadMarked(b)
	return n, a, err
}

func (c *memConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.n.mu.Lock()
		delete(c.n.conns, c.addr)
		c.n.mu.Unlock()
	})
	return nil
}

func (c *memConn) LocalAddr() net.Addr              { return net.UDPAddrFromAddrPort(c.addr) }
func (c *memConn) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (c *memConn) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (c *memConn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
	addrC = netip.MustParseAddr("10.0.0.3")
)

// newProvider makes a provider that ends with the test.
func newProvider(t testing.TB, cfg *Config) *Provider {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (n *network) provider(t testing.TB, seed uint64, addrs ...netip.Addr) *Provider {
	t.Helper()
	return newProvider(t, &Config{Addrs: addrs, ListenPacket: n.listen, Seed: seed})
}

func open(t testing.TB, p *Provider) *deviceContext {
	t.Helper()
	c, err := p.OpenDevice("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*deviceContext)
}

// side is one end of a connection with all that belongs to it.
type side struct {
	t    testing.TB
	ctx  *deviceContext
	pd   driver.PD
	ch   *compChannel
	scq  *cq
	rcq  *cq
	qp   *qp
	mem  []byte
	mr   driver.MR
	lkey ib.LKey
	rkey ib.RKey
	addr netip.Addr
	base uint64
	id   uint64
}

type sideConfig struct {
	depth, entries, size int
	sge                  int
	access               ib.Access
}

func newSide(t testing.TB, p *Provider, addr netip.Addr, c sideConfig) *side {
	t.Helper()
	if c.depth == 0 {
		c.depth = 16
	}
	if c.entries == 0 {
		c.entries = 2 * c.depth
	}
	if c.size == 0 {
		c.size = 64 << 10
	}
	if c.access == 0 {
		c.access = ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic
	}
	c.sge = max(c.sge, 1)
	s := &side{t: t, ctx: open(t, p), addr: addr, base: 0x10000}
	var err error
	if s.pd, err = s.ctx.AllocPD(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.pd.Close() })
	ch, err := s.ctx.CreateCompChannel()
	if err != nil {
		t.Fatal(err)
	}
	s.ch = ch.(*compChannel)
	t.Cleanup(func() { ch.Close() })
	s.scq = s.newCQ(1, c.entries)
	s.rcq = s.newCQ(2, c.entries)
	s.mem = make([]byte, c.size)
	if s.mr, err = s.pd.RegMR(s.mem, s.base, c.access); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.mr.Close() })
	s.lkey, s.rkey = s.mr.Keys()
	s.qp = s.newQP(c)
	return s
}

func (s *side) newCQ(handle uint64, entries int) *cq {
	s.t.Helper()
	c, err := s.ctx.CreateCQ(driver.CQConfig{Handle: handle, Entries: entries, Channel: s.ch})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c.(*cq)
}

func (s *side) newQP(c sideConfig) *qp {
	s.t.Helper()
	q, err := s.pd.CreateQP(driver.QPConfig{
		Handle: 7,
		Type:   ib.RC,
		SendCQ: s.scq,
		RecvCQ: s.rcq,
		Cap:    driver.Caps{MaxSendWR: c.depth, MaxRecvWR: c.depth, MaxSendSGE: c.sge, MaxRecvSGE: c.sge, MaxInline: 64},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { q.Close() })
	return q.(*qp)
}

const allAccess = ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic

// path are the attributes that both ends of a connection share.
type path struct {
	mtu     ib.MTU
	timeout time.Duration
	retries int
	tc      uint8
}

// gidIndex gives the place of the address in the GID table, or -1.
func (s *side) gidIndex() int {
	s.ctx.d.port.refresh()
	if i, _, ok := s.ctx.d.port.find(s.addr); ok {
		return i
	}
	return -1
}

// toRTR and toRTS move the queue pair of s towards another.
func (s *side) toRTR(q *qp, remote netip.Addr, dest ib.QPN, p path) error {
	if p.mtu == 0 {
		p.mtu = ib.MTU1024
	}
	if err := q.Modify(&driver.QPAttr{State: ib.StateInit, Port: 1, Access: allAccess},
		ib.AttrState|ib.AttrPort|ib.AttrPKeyIndex|ib.AttrAccess); err != nil {
		return err
	}
	return q.Modify(&driver.QPAttr{
		State:           ib.StateRTR,
		PathMTU:         p.mtu,
		DestQPN:         dest,
		RQPSN:           psnOf(dest),
		MaxDestRDAtomic: 4,
		MinRNRTimer:     640 * time.Microsecond,
		AH: driver.AHAttr{
			Global: true, DGID: ib.GIDFromAddr(remote), SGIDIndex: s.gidIndex(), Port: 1, HopLimit: 64, TrafficClass: p.tc,
		},
	}, ib.AttrState|ib.AttrAV|ib.AttrPathMTU|ib.AttrDestQPN|ib.AttrRQPSN|ib.AttrMaxDestRDAtomic|ib.AttrMinRNRTimer)
}

func (s *side) toRTS(q *qp, p path) error {
	if p.timeout == 0 {
		p.timeout = 67 * time.Millisecond
	}
	if p.retries == 0 {
		p.retries = 7
	}
	return q.Modify(&driver.QPAttr{
		State: ib.StateRTS, SQPSN: psnOf(q.Num()), MaxRDAtomic: 4, RetryCount: p.retries, RNRRetry: 7, Timeout: p.timeout,
	}, ib.AttrState|ib.AttrSQPSN|ib.AttrMaxRDAtomic|ib.AttrRetryCount|ib.AttrRNRRetry|ib.AttrTimeout)
}

// psnOf gives the PSN with which a queue pair of these tests starts to send.
func psnOf(n ib.QPN) ib.PSN { return ib.PSN(uint32(n)*7919) & 0xFFFFFF }

// connect joins the queue pairs of two sides.
func connect(t testing.TB, a, b *side, p path) {
	t.Helper()
	for _, err := range []error{
		a.toRTR(a.qp, b.addr, b.qp.Num(), p), b.toRTR(b.qp, a.addr, a.qp.Num(), p),
		a.toRTS(a.qp, p), b.toRTS(b.qp, p),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// post fills in one send request and posts it.
func (s *side) post(f func(*driver.SendSlot)) uint64 {
	s.t.Helper()
	slots := s.qp.SendSlots()
	if len(slots) == 0 {
		s.t.Fatal("send queue is full")
	}
	s.id++
	w := &slots[0]
	sgl, data := w.SGL[:0], w.Data[:0]
	*w = driver.SendSlot{ID: s.id, SGL: sgl, Data: data, Flags: ib.Signaled}
	f(w)
	if n, err := s.qp.CommitSend(1); n != 1 || err != nil {
		s.t.Fatalf("post send: %d, %v", n, err)
	}
	return s.id
}

func (s *side) sge(off, n int) driver.SGE {
	return driver.SGE{Addr: s.base + uint64(off), Len: uint32(n), LKey: s.lkey}
}

func (s *side) send(off, n int, f ib.SendFlags) uint64 {
	s.t.Helper()
	return s.post(func(w *driver.SendSlot) {
		w.Opcode, w.Flags = ib.OpSend, w.Flags|f
		w.SGL = append(w.SGL, s.sge(off, n))
	})
}

func (s *side) write(to *side, remoteOff, off, n int) uint64 {
	s.t.Helper()
	return s.post(func(w *driver.SendSlot) {
		w.Opcode, w.Addr, w.RKey = ib.OpWrite, to.base+uint64(remoteOff), to.rkey
		w.SGL = append(w.SGL, s.sge(off, n))
	})
}

func (s *side) recv(off, n int) uint64 {
	s.t.Helper()
	slots := s.qp.RecvSlots()
	if len(slots) == 0 {
		s.t.Fatal("receive queue is full")
	}
	s.id++
	slots[0].ID = s.id
	slots[0].SGL = append(slots[0].SGL[:0], s.sge(off, n))
	if n, err := s.qp.CommitRecv(1); n != 1 || err != nil {
		s.t.Fatalf("post receive: %d, %v", n, err)
	}
	return s.id
}

// next waits for a completion of c, the correct way.
func (s *side) next(c *cq) driver.WC {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return s.nextBefore(ctx, c)
}

func (s *side) nextBefore(ctx context.Context, c *cq) driver.WC {
	s.t.Helper()
	for {
		if w, ok := s.poll(c); ok {
			return w
		}
		if err := c.Arm(false); err != nil {
			s.t.Fatal(err)
		}
		if w, ok := s.poll(c); ok {
			return w
		}
		if err := s.ch.Wait(ctx); err != nil {
			s.t.Fatalf("no completion: %v", err)
		}
		for {
			if _, ok, err := s.ch.Next(); err != nil {
				s.t.Fatal(err)
			} else if !ok {
				break
			}
		}
	}
}

// poll takes one completion; the tests that use it let no second one be there.
func (s *side) poll(c *cq) (driver.WC, bool) {
	s.t.Helper()
	got, err := pollOne(c)
	if err != nil {
		s.t.Fatal(err)
	}
	if got == nil {
		return driver.WC{}, false
	}
	return *got, true
}

// staged holds what a Poll gave and nobody has taken yet.
var staged sync.Map // *cq → []driver.WC

func pollOne(c *cq) (*driver.WC, error) {
	if rest, ok := staged.LoadAndDelete(c); ok {
		w := rest.([]driver.WC)
		if len(w) > 1 {
			staged.Store(c, w[1:])
		}
		return &w[0], nil
	}
	ws, err := c.Poll()
	if err != nil || len(ws) == 0 {
		return nil, err
	}
	w := slices.Clone(ws)
	if len(w) > 1 {
		staged.Store(c, w[1:])
	}
	return &w[0], nil
}

// events drains a channel and gives the handles.
func (s *side) events() (handles []uint64) {
	s.t.Helper()
	for {
		h, ok, err := s.ch.Next()
		if err != nil {
			s.t.Fatal(err)
		}
		if !ok {
			return handles
		}
		handles = append(handles, h)
	}
}

// forge makes a packet as it would be on the wire, ICRC included.
func forge(from, to netip.AddrPort, p *wire.Packet) []byte {
	b := p.AppendTo(nil)
	b = append(b, 0, 0, 0, 0)
	f := wire.NewFlow(from, to)
	f.Put(b, 0)
	return b
}

func at(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, wire.Port) }
