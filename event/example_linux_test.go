package event_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"syscall"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	depth = 16   // receives of a connection
	size  = 1024 // of a message, at most
	conns = 4    // at a time
)

// One loop, and one goroutine, for everything: a server that echoes messages over RDMA, a
// client of it, and a TCP socket whose bytes the client takes to the server and back.
func Example() {
	loop, err := event.New(&event.Config{Spin: event.Spin{Max: 20 * time.Microsecond, Adaptive: true}})
	if err != nil {
		log.Fatal(err)
	}
	defer loop.Close()
	p, _, err := rdma.Provider(rdma.Soft) // rdma.Auto takes what the host has
	if err != nil {
		log.Fatal(err)
	}
	s, err := serve(loop, p, netip.MustParseAddrPort("127.7.4.72:0"))
	if err != nil {
		log.Fatal(err)
	}
	defer s.close()
	g, err := gateway(loop, p, s.ln.LocalAddr())
	if err != nil {
		log.Fatal(err)
	}
	defer g.close()

	// Somebody who knows nothing of all that.
	go func() {
		c, err := net.Dial("tcp", g.addr)
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close()
		for _, word := range []string{"hello", "world"} {
			fmt.Fprint(c, word)
			b := make([]byte, len(word))
			if _, err := io.ReadFull(c, b); err != nil {
				log.Fatal(err)
			}
			fmt.Println(string(b))
		}
		loop.Stop()
	}()
	fmt.Println(loop.Run(context.Background()))
	// Output:
	// hello
	// world
	// <nil>
}

// side is what server and client have on a device: one completion queue, and memory for the
// receives of all connections.
type side struct {
	loop *event.Loop
	ch   *cm.EventChannel
	pd   *verbs.PD
	cq   *verbs.CQ
	mr   *verbs.MR
	free []int // places in mr for the slots of a connection
}

// peer is a connection.
type peer struct {
	id   *cm.ID
	s    *side
	base int
}

func (p *peer) slot(id uint64, n int) verbs.SGE { return p.s.mr.SGE(p.base+int(id)*size, n) }

func (p *peer) bytes(id uint64, n int) []byte { return p.s.mr.Bytes()[p.base+int(id)*size:][:n] }

func newSide(loop *event.Loop, p verbs.Provider, onCM func(cm.Event)) (s *side, err error) {
	s = &side{loop: loop}
	if s.ch, err = cm.NewEventChannel(p); err != nil {
		return nil, err
	}
	_, err = loop.CM(s.ch, onCM)
	return s, err
}

// open makes what the first connection needs, on its device.
func (s *side) open(dev *verbs.Device, onWC func(verbs.WC)) (err error) {
	if s.pd != nil {
		return nil
	}
	if s.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if s.cq, err = dev.CreateCQ(2*depth*conns, nil); err != nil {
		return err
	}
	if s.mr, err = s.pd.Alloc(conns*depth*size, ib.LocalWrite); err != nil {
		return err
	}
	for i := range conns {
		s.free = append(s.free, i*depth*size)
	}
	_, err = s.loop.CQ(s.cq, onWC)
	return err
}

// connection makes a queue pair, with receives.
func (s *side) connection(id *cm.ID) (*peer, error) {
	if len(s.free) == 0 {
		return nil, errors.New("too many connections")
	}
	p := &peer{id: id, s: s, base: s.free[len(s.free)-1]}
	qp, err := id.CreateQP(s.pd, verbs.QPConfig{SendCQ: s.cq, MaxSendWR: depth, MaxRecvWR: depth, UserData: p})
	if err != nil {
		return nil, err
	}
	for i := range uint64(depth - 1) { // the last slot is for sending
		if err := qp.PostRecv(verbs.Recv(i, p.slot(i, size))); err != nil {
			return nil, err
		}
	}
	s.free = s.free[:len(s.free)-1]
	return p, nil
}

// drop ends a connection. Nothing of it is delivered any more, so its memory is free.
func (p *peer) drop() {
	p.id.Close()
	p.s.free = append(p.s.free, p.base)
}

// close ends all; any order is right.
func (s *side) close() {
	s.ch.Close()
	if s.pd != nil {
		s.cq.Close()
		s.mr.Close()
		s.pd.Close()
	}
}

// server echoes.
type server struct {
	*side
	ln *cm.ID
}

func serve(loop *event.Loop, p verbs.Provider, addr netip.AddrPort) (s *server, err error) {
	s = &server{}
	if s.side, err = newSide(loop, p, s.onCM); err != nil {
		return nil, err
	}
	if s.ln, err = s.ch.NewID(ib.PortSpaceTCP); err != nil {
		return nil, err
	}
	if err := s.ln.Bind(addr); err != nil {
		return nil, err
	}
	return s, s.ln.Listen(0)
}

func (s *server) onCM(ev cm.Event) {
	if ev.Type != cm.ConnectRequest {
		return // an end shows in the completion queue, behind the data that came before
	}
	err := s.open(ev.ID.Device(), s.onWC)
	if err == nil {
		_, err = s.connection(ev.ID)
	}
	if err == nil {
		err = ev.ID.Accept(nil)
	}
	if err != nil {
		ev.ID.Close() // rejects
	}
}

func (s *server) onWC(wc verbs.WC) {
	p := wc.QP.UserData().(*peer)
	err := wc.Err()
	switch {
	case err != nil:
	case wc.Opcode.IsRecv():
		err = wc.QP.PostSend(verbs.Send(wc.ID, p.slot(wc.ID, int(wc.ByteLen)), ib.Signaled))
	default: // the echo is sent: the slot receives again
		err = wc.QP.PostRecv(verbs.Recv(wc.ID, p.slot(wc.ID, size)))
	}
	if err != nil {
		p.drop()
	}
}

func (s *server) close() {
	s.ln.Close()
	s.side.close()
}

// gate takes the bytes of a TCP connection to a server, and its answers back.
type gate struct {
	*side
	addr string
	ln   int // descriptors
	tcp  int
	peer *peer
}

func gateway(loop *event.Loop, p verbs.Provider, to netip.AddrPort) (g *gate, err error) {
	g = &gate{ln: -1, tcp: -1}
	if g.side, err = newSide(loop, p, g.onCM); err != nil {
		return nil, err
	}
	id, err := g.ch.NewID(ib.PortSpaceTCP)
	if err != nil {
		return nil, err
	}
	if err := id.ResolveAddr(netip.AddrPort{}, to, time.Second); err != nil {
		return nil, err
	}
	if g.ln, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0); err != nil {
		return nil, err
	}
	if err := syscall.Bind(g.ln, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return nil, err
	}
	sa, err := syscall.Getsockname(g.ln)
	if err != nil {
		return nil, err
	}
	g.addr = fmt.Sprintf("127.0.0.1:%d", sa.(*syscall.SockaddrInet4).Port)
	return g, syscall.Listen(g.ln, 1)
}

func (g *gate) onCM(ev cm.Event) {
	var err error
	switch ev.Type {
	case cm.AddrResolved:
		err = ev.ID.ResolveRoute(time.Second)
	case cm.RouteResolved:
		if err = g.open(ev.ID.Device(), g.onWC); err != nil {
			break
		}
		if g.peer, err = g.connection(ev.ID); err == nil {
			err = ev.ID.Connect(nil)
		}
	case cm.Established:
		_, err = g.loop.File(g.ln, event.Readable, g.onAccept)
	default:
		err = errors.Join(errors.New(ev.Type.String()), ev.Err)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func (g *gate) onAccept(event.Mask) {
	fd, _, err := syscall.Accept4(g.ln, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
	if err != nil {
		return // it is gone already
	}
	g.tcp = fd
	if _, err := g.loop.File(fd, event.Readable, g.onTCP); err != nil {
		log.Fatal(err)
	}
}

// onTCP reads into the slot that is for sending. A real gateway would read on while the
// message is under way, and wait for room before it writes.
func (g *gate) onTCP(event.Mask) {
	n, err := syscall.Read(g.tcp, g.peer.bytes(depth-1, size))
	if n <= 0 || err != nil {
		g.loop.Stop()
		return
	}
	if err := g.peer.id.QP().PostSend(verbs.Send(depth-1, g.peer.slot(depth-1, n), 0)); err != nil {
		log.Fatal(err)
	}
}

func (g *gate) onWC(wc verbs.WC) {
	if err := wc.Err(); err != nil {
		log.Fatal(err)
	}
	if _, err := syscall.Write(g.tcp, g.peer.bytes(wc.ID, int(wc.ByteLen))); err != nil {
		log.Fatal(err)
	}
	if err := wc.QP.PostRecv(verbs.Recv(wc.ID, g.peer.slot(wc.ID, size))); err != nil {
		log.Fatal(err)
	}
}

func (g *gate) close() {
	if g.peer != nil {
		g.peer.drop()
	}
	g.side.close()
	for _, fd := range []int{g.ln, g.tcp} {
		if fd >= 0 {
			syscall.Close(fd)
		}
	}
}
