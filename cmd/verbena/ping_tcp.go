package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// The same exchange over TCP: the same messages, and data in the same direction at the
// same time. What one side does alone over RDMA takes both here: to READ is to ask, and
// the client answers.
//
//	client                                  server
//	names its source buffer         →
//	                                ←       asks for it
//	data                            →
//	                                ←       "go on"
//	names its target buffer         →
//	                                ←       data, "go on"
//
// Before the first exchange the client says hello and its size, and the server answers
// with the same, so that each knows whom it talks to.

const tcpHello = "verbena ping 1\n"

// tcpClient is the client's side of the exchange over TCP.
type tcpClient struct {
	c     net.Conn
	ctx   context.Context // its end interrupts an exchange
	stop  func() bool     // of the interruption
	o     *pingOptions
	buf   []byte
	back  []byte
	stats *stats
	err   error // ended it
}

// dialTCP connects to the TCP side of a server. An error says why there is none.
func dialTCP(ctx context.Context, from netip.Addr, to netip.AddrPort, o *pingOptions) (*tcpClient, error) {
	d := net.Dialer{Timeout: o.timeout, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	c, err := d.DialContext(ctx, "tcp", to.String())
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, errors.New("the peer offers none (rping does not)")
	}
	if err != nil {
		return nil, err
	}
	t := &tcpClient{c: c, ctx: ctx, o: o, buf: make([]byte, o.size), back: make([]byte, o.size+messageLen), stats: newStats()}
	t.stop = context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	c.SetDeadline(time.Now().Add(o.timeout))
	hello := hello(o.size)
	answer := make([]byte, len(hello))
	if _, err = c.Write(hello); err == nil {
		_, err = io.ReadFull(c, answer)
	}
	if err != nil || string(answer) != string(hello) {
		t.close()
		return nil, fmt.Errorf("what listens on TCP port %d is not verbena ping", to.Port())
	}
	return t, nil
}

func hello(size int) []byte { return fmt.Appendf(nil, "%s%5d\n", tcpHello, size) }

// exchange does one exchange and takes its time. After an error it does nothing.
func (t *tcpClient) exchange(seq int) {
	if t.err != nil {
		return
	}
	fillPing(t.buf, seq)
	clear(t.back)
	t.c.SetDeadline(time.Now().Add(t.o.timeout))
	begun := time.Now()
	err := t.steps()
	took := time.Since(begun)
	if err == nil {
		err = comparePing(t.back, t.buf)
	}
	if err != nil && t.ctx.Err() != nil {
		err = t.ctx.Err() // not the peer's silence
	}
	if t.err = err; err == nil {
		t.stats.add(took)
	}
}

func (t *tcpClient) steps() error {
	var message [messageLen]byte
	if _, err := t.c.Write(message[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(t.c, message[:]); err != nil {
		return err
	}
	if _, err := t.c.Write(t.buf); err != nil {
		return err
	}
	if _, err := io.ReadFull(t.c, message[:]); err != nil {
		return err
	}
	if _, err := t.c.Write(message[:]); err != nil {
		return err
	}
	_, err := io.ReadFull(t.c, t.back)
	return err
}

func (t *tcpClient) close() {
	t.stop()
	t.c.Close()
}

// tcpServer is the server's side.
type tcpServer struct {
	ln net.Listener
	o  *pingOptions
	wg sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
}

func listenTCP(at netip.AddrPort, o *pingOptions) (*tcpServer, error) {
	ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	s := &tcpServer{ln: ln, o: o, conns: map[net.Conn]bool{}}
	s.wg.Go(s.accept)
	return s, nil
}

func (s *tcpServer) accept() {
	for {
		c, err := s.ln.Accept()
		if err != nil {
			return // closed
		}
		if !s.add(c) {
			c.Close()
			continue
		}
		s.wg.Go(func() {
			defer s.remove(c)
			// The client tells its user what went wrong; here there is nothing to add.
			_ = s.serve(c)
		})
	}
}

// add counts a connection, unless there are too many.
func (s *tcpServer) add(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) >= maxClients {
		return false
	}
	s.conns[c] = true
	return true
}

func (s *tcpServer) remove(c net.Conn) {
	c.Close()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// serve answers one client until it goes, or does what is not agreed. A client that is
// gone without a word is noticed by TCP's keep-alive.
func (s *tcpServer) serve(c net.Conn) error {
	c.SetDeadline(time.Now().Add(s.o.timeout))
	greeting := make([]byte, len(hello(0)))
	if _, err := io.ReadFull(c, greeting); err != nil {
		return err
	}
	var size int
	if _, err := fmt.Sscanf(string(greeting), tcpHello+"%5d\n", &size); err != nil {
		return err
	}
	if size < rpingMin || size > s.o.size {
		return fmt.Errorf("size %d", size)
	}
	if _, err := c.Write(greeting); err != nil {
		return err
	}
	c.SetDeadline(time.Time{})
	var message [messageLen]byte
	buf := make([]byte, size+messageLen) // data, and "go on" behind it
	for {
		if _, err := io.ReadFull(c, message[:]); err != nil {
			return err
		}
		if _, err := c.Write(message[:]); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, buf[:size]); err != nil {
			return err
		}
		if err := checkPing(buf[:size]); err != nil {
			return err
		}
		if _, err := c.Write(message[:]); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, message[:]); err != nil {
			return err
		}
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
}

func (s *tcpServer) close() {
	s.ln.Close()
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}
