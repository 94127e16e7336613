package netio

import (
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// sender writes batches. Its place in what is to be sent is a message and an offset in
// it, as a train may go out in several pieces.
type sender struct {
	headers
	c     *batchConn
	mu    sync.Mutex
	ms    []Message
	at    int           // message
	off   int           // bytes of it that are sent
	split bool          // its segments go one by one: the system refused the train
	piece [batch]int    // bytes of each header
	err   error         // ends the call
	bad   syscall.Errno // of the message where fill stopped
	call  func(uintptr) bool
	send  func(fd uintptr, h []unix.Mmsghdr) (int, syscall.Errno) // unix.Sendmmsg; tests put faults here
}

func (s *sender) init(c *batchConn) {
	s.headers.init()
	s.c = c
	s.call = func(uintptr) bool { return s.attempt() }
	s.send = unix.Sendmmsg
}

func (c *batchConn) Write(ms []Message) (n int, err error) {
	if len(ms) == 0 {
		return 0, nil
	}
	s := &c.write
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	s.ms, s.at, s.off, s.split, s.err = ms, 0, 0, false, nil
	if !s.attempt() {
		err = s.await()
	}
	if err == nil {
		err = s.err
	}
	s.ms = nil
	return s.at, err
}

// await goes on when there is room again.
func (s *sender) await() error {
	s.c.count.waits.Add(1)
	g := &s.c.writable
	if err := g.ask(s.c.fd, unix.PollOut); err != nil {
		return err
	}
	defer g.ask(s.c.fd, 0)
	return g.wait(s.call)
}

// attempt sends until everything is sent, something fails, or the buffer is full, for
// which it gives false.
func (s *sender) attempt() bool {
	c := s.c
	fd := uintptr(c.fd)
	for s.at < len(s.ms) {
		n := s.fill()
		if n == 0 {
			s.err = s.bad
			return true
		}
		sent, e := s.send(fd, s.msg[:n])
		s.release(n)
		switch e {
		case 0:
			s.advance(sent)
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		case syscall.ECONNREFUSED, syscall.EHOSTDOWN:
			// An ICMP answer to something sent earlier; having been told clears it. Should
			// it be about this message, a later layer notices that nothing arrives.
			s.advance(1)
		case syscall.EIO, syscall.EINVAL, syscall.EMSGSIZE:
			m := &s.ms[s.at]
			if m.Segment == 0 || s.piece[0] <= m.Segment {
				s.err = e
				return true
			}
			// The system cannot cut this train: the route has no checksum offload (EIO),
			// or its segments do not fit the path.
			c.count.fallbacks.Add(1)
			s.split = true
			if e == syscall.EIO {
				c.gso.Store(false)
			}
		default:
			s.err = e
			return true
		}
	}
	return true
}

// fill makes headers from the place on. If the first message cannot be expressed it
// gives 0 and sets bad.
func (s *sender) fill() (n int) {
	at, off, split := s.at, s.off, s.split || !s.c.gso.Load()
	for n < batch && at < len(s.ms) {
		m := &s.ms[at]
		to := m.Addr.Addr()
		if to.Is4In6() {
			to = to.Unmap()
		}
		if to.Is4() != s.c.v4 || !to.IsValid() {
			s.bad = syscall.EAFNOSUPPORT
			return n
		}
		b := m.Buf[off:]
		if m.Segment > 0 && len(b) > m.Segment {
			fit := 1
			if !split {
				fit = max(1, min(maxSegments, ipv4Payload/m.Segment))
			}
			b = b[:min(len(b), fit*m.Segment)]
		}
		s.put(n, m, to, b)
		n++
		off += len(b)
		if off >= len(m.Buf) {
			at, off, split = at+1, 0, !s.c.gso.Load()
		}
	}
	return n
}

// put makes one header.
func (s *sender) put(i int, m *Message, to netip.Addr, b []byte) {
	s.piece[i] = len(b)
	s.setBuf(i, b)
	h := &s.msg[i].Hdr
	h.Namelen = s.name[i].put(to, m.Addr.Port(), s.c.scope)
	tos := m.TOS
	if !s.c.ecn {
		tos &^= ecnBits
	}
	end := 0
	if tos != 0 {
		if s.c.v4 {
			end = s.control[i].put(end, unix.IPProtoIP, unix.IPTOS, 4, uint32(tos))
		} else {
			end = s.control[i].put(end, unix.IPProtoIPv6, unix.IPv6TClass, 4, uint32(tos))
		}
	}
	if m.Segment > 0 && len(b) > m.Segment {
		end = s.control[i].put(end, unix.IPProtoUDP, unix.UDPSegment, 2, uint32(m.Segment))
	}
	h.SetControllen(end)
}

// advance counts n headers as sent.
func (s *sender) advance(n int) {
	datagrams, trains := 0, 0
	for i := range n {
		m := &s.ms[s.at]
		datagrams++
		if m.Segment > 0 && s.piece[i] > m.Segment {
			trains++
			datagrams += (s.piece[i] - 1) / m.Segment
		}
		s.off += s.piece[i]
		if s.off >= len(m.Buf) {
			s.at, s.off, s.split = s.at+1, 0, false
		}
	}
	c := &s.c.count
	c.writeCalls.Add(1)
	c.sent.Add(uint64(datagrams))
	if trains > 0 {
		c.sentTrains.Add(uint64(trains))
	}
}
