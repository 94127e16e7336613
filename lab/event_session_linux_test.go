package lab_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// eventSession is a client and a server that echoes, in one process. Its methods are called
// by one goroutine at a time: by an event loop, or by goroutines with a lock.
type eventSession struct {
	t        *testing.T
	client   eventSide
	server   eventSide
	ln, id   *cm.ID
	messages int
	sent     int
	log      []string
	over     bool
	end      func() // called when it is over; nil: nothing

	run func(*verbs.CQ, func(verbs.WC)) // has completions followed
}

// eventSide is what one of them has.
type eventSide struct {
	ch *cm.EventChannel
	pd *verbs.PD
	cq *verbs.CQ
	mr *verbs.MR
	id *cm.ID // of the connection
}

const (
	eventSlots = 4 // receives; the next is for sending
	eventSize  = 64
)

func newEventSession(t *testing.T, p verbs.Provider, addr netip.Addr, messages int) *eventSession {
	t.Helper()
	s := &eventSession{t: t, messages: messages}
	var err error
	s.client.ch, err = cm.NewEventChannel(p)
	s.ok(err)
	s.server.ch, err = cm.NewEventChannel(p)
	s.ok(err)
	s.ln, err = s.server.ch.NewID(ib.PortSpaceTCP)
	s.ok(err)
	s.ok(s.ln.Bind(netip.AddrPortFrom(addr, 0)))
	s.ok(s.ln.Listen(1))
	s.id, err = s.client.ch.NewID(ib.PortSpaceTCP)
	s.ok(err)
	s.ok(s.id.ResolveAddr(netip.AddrPort{}, s.ln.LocalAddr(), 20*time.Second))
	return s
}

func (s *eventSession) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Error(err)
	}
}

func (s *eventSession) add(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

// watch has an event loop do it.
func (s *eventSession) watch(l *event.Loop) {
	_, err := l.CM(s.client.ch, s.onClient)
	s.ok(err)
	_, err = l.CM(s.server.ch, s.onServer)
	s.ok(err)
	s.run = func(cq *verbs.CQ, f func(verbs.WC)) {
		_, err := l.CQ(cq, f)
		s.ok(err)
	}
}

// byGoroutines has goroutines do it, one for each source.
func (s *eventSession) byGoroutines(limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	s.end = cancel
	var mu sync.Mutex
	var all sync.WaitGroup
	each := func(ch *cm.EventChannel, f func(cm.Event)) {
		f = locked(&mu, f)
		all.Go(func() {
			for ev, err := range ch.Events(ctx) {
				if err != nil {
					return
				}
				f(ev)
			}
		})
	}
	s.run = func(cq *verbs.CQ, f func(verbs.WC)) {
		f = locked(&mu, f)
		all.Go(func() {
			for wc, err := range cq.Completions(ctx) {
				if err != nil {
					if st := cq.Stats(); st.Rescued != 0 {
						s.t.Errorf("%+v", st)
					}
					return
				}
				f(wc)
			}
		})
	}
	each(s.client.ch, s.onClient)
	each(s.server.ch, s.onServer)
	all.Wait()
	if err := ctx.Err(); !errors.Is(err, context.Canceled) {
		s.t.Error(err)
	}
}

func (s *eventSession) onClient(ev cm.Event) {
	s.ok(ev.Err)
	switch ev.Type {
	case cm.AddrResolved:
		s.add("address")
		s.ok(s.id.ResolveRoute(20 * time.Second))
	case cm.RouteResolved:
		s.add("route")
		s.open(&s.client, s.id, s.onAnswer)
		s.ok(s.id.Connect(nil))
	case cm.Established:
		s.add("established")
		s.next()
	case cm.Disconnected:
		s.add("disconnected")
		s.over = true
		if s.end != nil {
			s.end()
		}
	default: // TimewaitExit
	}
}

func (s *eventSession) onServer(ev cm.Event) {
	switch ev.Type {
	case cm.ConnectRequest:
		s.open(&s.server, ev.ID, s.onQuestion)
		s.ok(ev.ID.Accept(nil))
	case cm.Disconnected:
		s.ok(ev.ID.Disconnect())
	default:
	}
}

// open makes what a side needs on the device of a connection, and its queue pair.
func (s *eventSession) open(e *eventSide, id *cm.ID, f func(verbs.WC)) {
	e.id = id
	dev := id.Device()
	var err error
	e.pd, err = dev.AllocPD()
	s.ok(err)
	e.cq, err = dev.CreateCQ(2*(eventSlots+1), nil)
	s.ok(err)
	e.mr, err = e.pd.Alloc((eventSlots+1)*eventSize, ib.LocalWrite)
	s.ok(err)
	_, err = id.CreateQP(e.pd, verbs.QPConfig{SendCQ: e.cq, MaxSendWR: eventSlots + 1, MaxRecvWR: eventSlots})
	s.ok(err)
	for i := range uint64(eventSlots) {
		s.ok(e.recv(i))
	}
	s.run(e.cq, f)
}

func (e *eventSide) slot(i uint64) verbs.SGE { return e.mr.SGE(int(i)*eventSize, eventSize) }
func (e *eventSide) recv(i uint64) error     { return e.id.QP().PostRecv(verbs.Recv(i, e.slot(i))) }
func (e *eventSide) send(i uint64) error {
	return e.id.QP().PostSend(verbs.Send(i, e.slot(i), ib.Signaled))
}

// next sends the next message, or ends the connection.
func (s *eventSession) next() {
	if s.sent == s.messages {
		s.ok(s.id.Disconnect())
		return
	}
	s.client.mr.Bytes()[eventSlots*eventSize] = byte(s.sent)
	s.sent++
	s.ok(s.client.send(eventSlots))
}

// onQuestion sends back what was received, from where it lies.
func (s *eventSession) onQuestion(wc verbs.WC) {
	switch {
	case wc.Status == ib.StatusWRFlush: // the end
	case wc.Err() != nil:
		s.ok(wc.Err())
	case wc.Opcode.IsRecv():
		s.ok(s.server.send(wc.ID))
	default:
		s.ok(s.server.recv(wc.ID))
	}
}

func (s *eventSession) onAnswer(wc verbs.WC) {
	switch {
	case wc.Status == ib.StatusWRFlush:
	case wc.Err() != nil:
		s.ok(wc.Err())
	case wc.Opcode.IsRecv():
		s.add("echo %d", s.client.mr.Bytes()[wc.ID*eventSize])
		s.ok(s.client.recv(wc.ID))
		s.next()
	}
}

// close ends all, in any order, with the watches still there.
func (s *eventSession) close() {
	s.ln.Close()
	s.id.Close()
	for _, e := range []*eventSide{&s.server, &s.client} {
		if e.id != nil {
			e.id.Close()
		}
		e.ch.Close()
		if e.pd != nil {
			e.cq.Close()
			e.mr.Close()
			e.pd.Close()
		}
	}
}
