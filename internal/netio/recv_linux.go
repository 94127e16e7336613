package netio

import (
	"net/netip"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// receiver reads batches. Its call is made once, so that handing it to the poller
// allocates nothing.
type receiver struct {
	headers
	c     *batchConn
	mu    sync.Mutex
	ms    []Message
	n     int
	err   error
	call  func(fd uintptr) bool // one attempt; false: nothing there
	once  func(fd uintptr)
	sleep func(fd uintptr) bool // block, for ReadBlocking
	bell  int32
	slept bool // in ReadBlocking; there may be a bell
	fds   [2]unix.PollFD
	recv  func(fd uintptr, h []unix.Mmsghdr) (int, syscall.Errno) // unix.Recvmmsg; tests put faults here
}

func (r *receiver) init(c *batchConn) {
	r.headers.init()
	r.c = c
	r.call = r.attempt
	r.once = func(fd uintptr) { r.attempt(fd) }
	r.sleep = r.block
	r.recv = unix.Recvmmsg
}

func (c *batchConn) Read(ms []Message) (int, error) {
	if len(ms) == 0 {
		return 0, nil
	}
	return c.read.do(ms, true)
}

func (c *batchConn) TryRead(ms []Message) (int, error) {
	if len(ms) == 0 {
		return 0, nil
	}
	return c.try.do(ms, false)
}

func (r *receiver) do(ms []Message, wait bool) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if wait {
		if r.slept {
			r.slept = false
			r.c.bell.free()
		}
		return r.run(ms, r.call)
	}
	return r.run(ms, nil)
}

// run makes attempts as a function of the poller, or one (nil). r.mu is held.
func (r *receiver) run(ms []Message, f func(fd uintptr) bool) (n int, err error) {
	r.ms, r.n, r.err = ms[:min(len(ms), batch)], 0, nil
	if f != nil {
		err = r.c.raw.Read(f)
	} else {
		err = r.c.raw.Control(r.once)
	}
	if err == nil {
		err = r.err
	}
	n, r.ms = r.n, nil
	return n, err
}

// attempt reads what is there. It gives true if it has messages or an error.
func (r *receiver) attempt(fd uintptr) bool {
	ms := r.ms
	for i := range ms {
		r.setBuf(i, ms[i].Buf[:cap(ms[i].Buf)])
		r.reset(i)
	}
	defer r.release(len(ms))
	for {
		n, e := r.recv(fd, r.msg[:len(ms)])
		switch e {
		case 0:
			r.take(n)
			if r.n > 0 {
				return true
			}
			for i := range n { // everything was cut and dropped; there may be more
				r.reset(i)
			}
		case syscall.EAGAIN:
			return false
		case syscall.EINTR:
		case syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN:
			// An ICMP answer to something sent earlier: reading it clears it. A socket
			// that is not connected gets none, so nothing is lost by going on.
		default:
			r.err = e
			return true
		}
	}
}

// reset makes a header ready for what the kernel writes.
func (r *receiver) reset(i int) {
	h := &r.msg[i].Hdr
	h.Namelen = unix.SizeofSockaddrInet6
	h.SetControllen(controlSize)
	h.Flags = 0
}

// take turns n headers into messages.
func (r *receiver) take(n int) {
	c, ms := r.c, r.ms
	datagrams, trains := 0, 0
	for i := range n {
		h := &r.msg[i]
		if h.Hdr.Flags&unix.MsgTrunc != 0 {
			c.count.truncated.Add(1)
			continue
		}
		if r.n != i {
			ms[r.n].Buf, ms[i].Buf = ms[i].Buf, ms[r.n].Buf
		}
		m := &ms[r.n]
		k := r.control[i].get(int(h.Hdr.Controllen))
		m.Buf = m.Buf[:h.Len]
		m.TOS, m.TTL = k.tos, k.ttl
		if !c.ecn {
			m.TOS &^= ecnBits
		}
		m.Segment = 0
		datagrams++
		if k.segment > 0 && k.segment < len(m.Buf) {
			m.Segment = k.segment
			trains++
			datagrams += (len(m.Buf) - 1) / k.segment
		}
		if k.dropped {
			c.count.overflow.Store(uint64(k.overflow))
		}
		m.Addr = r.name[i].get(c.v4)
		if c.scope != 0 {
			m.Addr = withZone(m.Addr, c.local.Addr().Zone())
		}
		r.n++
	}
	c.count.readCalls.Add(1)
	c.count.received.Add(uint64(datagrams))
	if trains > 0 {
		c.count.receivedTrains.Add(uint64(trains))
	}
}

// withZone gives link-local addresses their zone: that of the socket, as no other can
// reach it.
func withZone(a netip.AddrPort, zone string) netip.AddrPort {
	if !a.Addr().IsLinkLocalUnicast() {
		return a
	}
	return netip.AddrPortFrom(a.Addr().WithZone(zone), a.Port())
}
