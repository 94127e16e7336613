package main

import (
	"errors"
	"net"
	"net/netip"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	depth = 16   // receives that a connection keeps posted
	size  = 4096 // of a message, at most
	conns = 64
)

// server is the service: what is done with events, whoever waits for them. Its methods are
// called by one goroutine at a time.
type server struct {
	ch      *cm.EventChannel
	ln      *cm.ID
	tcp     *net.TCPListener
	devices *cm.PerDevice[*device]
	peers   map[*peer]bool

	// added is called for each device that the service begins to use, as its events are
	// new sources. A device is known only when the first connection comes on it.
	added func(*device) error
}

// device is what the connections of a device share.
type device struct {
	dev  *verbs.Device
	pd   *verbs.PD
	ch   *verbs.CompChannel
	cq   *verbs.CQ
	mr   *verbs.MR // depth messages for each connection
	free []int     // offsets into mr
}

// peer is a connection.
type peer struct {
	id   *cm.ID
	dev  *device
	base int
}

func (p *peer) slot(id uint64, n int) verbs.SGE { return p.dev.mr.SGE(p.base+int(id)*size, n) }

func newServer(p verbs.Provider, rdmaAddr, tcpAddr string) (s *server, err error) {
	s = &server{peers: make(map[*peer]bool)}
	s.devices = cm.NewPerDevice(s.device)
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	addr, err := netip.ParseAddrPort(rdmaAddr)
	if err != nil {
		return s, err
	}
	if s.ch, err = cm.NewEventChannel(p); err != nil {
		return s, err
	}
	if s.ln, err = s.ch.NewID(ib.PortSpaceTCP); err != nil {
		return s, err
	}
	if err = s.ln.Bind(addr); err != nil {
		return s, err
	}
	if err = s.ln.Listen(0); err != nil {
		return s, err
	}
	ln, err := net.Listen("tcp", tcpAddr)
	if err != nil {
		return s, err
	}
	s.tcp = ln.(*net.TCPListener)
	return s, nil
}

func (s *server) rdmaAddr() netip.AddrPort { return s.ln.LocalAddr() }
func (s *server) tcpAddr() net.Addr        { return s.tcp.Addr() }

// onCM follows an event of the connection manager.
func (s *server) onCM(ev cm.Event) {
	switch ev.Type {
	case cm.ConnectRequest:
		// An error is this connection's alone. Closing the id of a request refuses it.
		if err := s.accept(ev.ID); err != nil {
			ev.ID.Close()
		}
	case cm.Established:
	default:
		// An end of any kind. The queue pair has failed before this event is seen, so its
		// receives come back through the completion queue, behind the data that came
		// before the end: onWC ends the connection, and loses nothing.
	}
}

func (s *server) accept(id *cm.ID) error {
	d, err := s.devices.Get(id.Device())
	if err != nil {
		return err
	}
	if len(d.free) == 0 {
		return errors.New("too many connections")
	}
	p := &peer{id: id, dev: d, base: d.free[len(d.free)-1]}
	qp, err := id.CreateQP(d.pd, verbs.QPConfig{SendCQ: d.cq, MaxSendWR: depth, MaxRecvWR: depth, UserData: p})
	if err != nil {
		return err
	}
	for i := range uint64(depth) { // before Accept: the peer may send at once
		if err := qp.PostRecv(verbs.Recv(i, p.slot(i, size))); err != nil {
			return err
		}
	}
	if err := id.Accept(nil); err != nil {
		return err
	}
	d.free = d.free[:len(d.free)-1]
	s.peers[p] = true
	return nil
}

// onWC follows a completion: what was received is sent back from where it lies, and what
// was sent makes room for the next message.
func (s *server) onWC(wc verbs.WC) {
	p := wc.QP.UserData().(*peer)
	if !s.peers[p] {
		return // an earlier one of the batch has ended the connection
	}
	err := wc.Err()
	switch {
	case err != nil:
	case wc.Opcode.IsRecv():
		err = wc.QP.PostSend(verbs.Send(wc.ID, p.slot(wc.ID, int(wc.ByteLen)), ib.Signaled))
	default:
		err = wc.QP.PostRecv(verbs.Recv(wc.ID, p.slot(wc.ID, size)))
	}
	if err == nil {
		return
	}
	// Closing the id closes the queue pair: no Poll gives a completion of it and no event
	// comes any more, and the memory is ours again.
	delete(s.peers, p)
	p.id.Close()
	p.dev.free = append(p.dev.free, p.base)
}

// onAsync follows an asynchronous event. Nothing need be done about most of them: the
// library fails the queue pairs that are concerned, and their completions tell.
func (s *server) onAsync(verbs.AsyncEvent) {}

// device makes what connections share when the first comes on a device.
func (s *server) device(dev *verbs.Device) (*device, error) {
	d := &device{dev: dev}
	err := d.open()
	if err == nil {
		err = s.added(d)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (d *device) open() (err error) {
	if d.pd, err = d.dev.AllocPD(); err != nil {
		return err
	}
	if d.ch, err = d.dev.CreateCompChannel(); err != nil {
		return err
	}
	if d.cq, err = d.dev.CreateCQ(2*depth*conns, &verbs.CQConfig{Channel: d.ch}); err != nil {
		return err
	}
	if d.mr, err = d.pd.Alloc(conns*depth*size, ib.LocalWrite); err != nil {
		return err
	}
	for i := range conns {
		d.free = append(d.free, i*depth*size)
	}
	return nil
}

// Close may come in any order: what is shared goes with the last that uses it. Close of
// what was not made is an error that nobody need see.
func (d *device) Close() error {
	d.cq.Close()
	d.ch.Close()
	d.mr.Close()
	d.pd.Close()
	return nil
}

func (s *server) close() {
	s.ln.Close()
	for p := range s.peers {
		p.id.Close()
	}
	s.ch.Close()
	s.devices.Close()
	if s.tcp != nil {
		s.tcp.Close()
	}
}
