package netio

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// batchBytes is how much a read asks for at most, as far as the last one tells.
const batchBytes = 256 << 10

// receiver reads batches. Its call is made once, so that handing it to the gate
// allocates nothing.
type receiver struct {
	headers
	c      *batchConn
	mu     sync.Mutex
	ms     []Message
	want   int // of how many the next call asks
	n      int
	bytes  int // of the last call that gave something
	err    error
	call   func(uintptr) bool // attempt, or listen
	bell   int32
	hushed atomic.Bool // what arrives wakes nobody, see Hush; changed with mu
	slept  bool        // in ReadBlocking; there may be a bell
	fds    [2]unix.PollFD
	recv   func(fd uintptr, h []unix.Mmsghdr) (int, syscall.Errno) // unix.Recvmmsg; tests put faults here
}

func (r *receiver) init(c *batchConn) {
	r.headers.init()
	r.c = c
	r.want = 1
	r.call = func(uintptr) bool { return r.attempt() || r.hushed.Load() && r.listen() }
	r.recv = unix.Recvmmsg
}

func (c *batchConn) Read(ms []Message) (int, error) {
	if len(ms) == 0 {
		return 0, nil
	}
	r := &c.read
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.slept {
		r.slept = false
		c.bell.free()
	}
	err := r.begin(ms)
	if err == nil {
		err = c.readable.wait(r.call)
	}
	return r.end(err)
}

func (c *batchConn) TryRead(ms []Message) (int, error) {
	if len(ms) == 0 {
		return 0, nil
	}
	r := &c.try
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.begin(ms)
	if err == nil {
		r.attempt()
	}
	return r.end(err)
}

// begin starts a call. r.mu is held, to the end.
func (r *receiver) begin(ms []Message) error {
	if r.c.closed.Load() {
		return net.ErrClosed
	}
	r.ms, r.n, r.err = ms[:min(len(ms), batch)], 0, nil
	return nil
}

// end gives the result of a call: err is why no attempt was made, or none any more.
func (r *receiver) end(err error) (int, error) {
	if err == nil {
		err = r.err
	}
	n := r.n
	r.ms, r.n, r.err = nil, 0, nil
	return n, err
}

// attempt reads what is there. It gives true if it has messages or an error.
func (r *receiver) attempt() bool {
	fd := uintptr(r.c.fd)
	ms := r.ms[:min(r.want, len(r.ms))]
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
			// Where much comes at once, calls are saved. The look for a second message that
			// is not there costs half of one. But what is read should still be in the cache
			// when it is handled, and its room when it is read into again.
			switch {
			case r.bytes > batchBytes:
				r.want = max(n/2, 1)
			case n == len(ms) && r.bytes <= batchBytes/2:
				r.want = min(2*r.want, batch)
			default:
				r.want = n
			}
			if r.n > 0 {
				return true
			}
			for i := range n { // everything was cut and dropped; there may be more
				r.reset(i)
			}
		case syscall.EAGAIN:
			r.want = 1
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

// listen ends Hush. What came before is not told, so it looks again.
func (r *receiver) listen() bool {
	if err := r.c.readable.ask(r.c.fd, unix.PollIn); err != nil {
		r.err = err
		return true
	}
	r.hushed.Store(false)
	return r.attempt()
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
	r.bytes = 0
	for i := range n {
		h := &r.msg[i]
		r.bytes += int(h.Len)
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
