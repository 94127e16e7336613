package transport

import (
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// QP is the protocol machine of one queue pair.
type QP struct {
	cfg   Config
	state ib.QPState
	attr  driver.QPAttr
	mtu   uint32

	sq    sendQueue
	rq    recvQueue
	req   requester
	resp  responder
	retry retry
	cc    congestion

	done        []Completion
	doneTaken   bool
	events      []ib.EventType
	eventsTaken bool

	tx    wire.Packet // the packet that is being made
	stats Stats
}

// New makes a queue pair in RESET. Errors: a type that is not offered wraps
// errors.ErrUnsupported, capabilities beyond the limits are a *ValueError.
func New(c Config) (*QP, error) {
	if c.Type != ib.RC {
		return nil, fmt.Errorf("transport: queue pair of type %v: %w", c.Type, errors.ErrUnsupported)
	}
	for _, l := range []struct {
		name       string
		value, max int
	}{
		{"MaxSendWR", c.Caps.MaxSendWR, MaxWR}, {"MaxRecvWR", c.Caps.MaxRecvWR, MaxWR},
		{"MaxSendSGE", c.Caps.MaxSendSGE, MaxSGE}, {"MaxRecvSGE", c.Caps.MaxRecvSGE, MaxSGE},
		{"MaxInline", c.Caps.MaxInline, MaxInline},
	} {
		if l.value < 0 || l.value > l.max {
			return nil, &ValueError{Field: l.name, Reason: fmt.Sprintf("%d is not in 0 to %d", l.value, l.max)}
		}
	}
	q := &QP{cfg: c}
	q.sq.init(c.Caps)
	q.rq.init(c.Caps)
	// Room for everything that a flush can complete, so that it does not allocate; deep
	// queues grow it when they need it.
	q.done = make([]Completion, 0, min(len(q.sq.slots)+len(q.rq.slots), 256))
	q.attr.Cap = c.Caps
	q.cc.peer = defaultWindow
	q.enterReset()
	return q, nil
}

// ValueError says which value of a configuration or an attribute is not possible.
type ValueError struct {
	Attr   ib.QPAttrMask // 0: not an attribute of Modify
	Field  string
	Reason string
}

func (e *ValueError) Error() string { return "transport: " + e.Field + ": " + e.Reason }

// State gives the state; any call may have changed it to ERR.
func (q *QP) State() ib.QPState { return q.state }

// Query gives all attributes, as they were set; times are rounded up to what the wire
// format can say.
func (q *QP) Query() driver.QPAttr {
	a := q.attr
	a.State, a.CurState = q.state, q.state
	a.SQDraining = q.state == ib.StateSQD && !q.drained()
	return a
}

// Receive takes a packet that is addressed to this queue pair: ICRC, addresses and
// P_Key have been checked, nothing else. It does not keep p or its payload.
func (q *QP) Receive(now time.Duration, p *wire.Packet) {
	q.stats.PacketsReceived++
	switch q.state {
	case ib.StateRTR, ib.StateRTS, ib.StateSQD:
	default:
		q.drop(DropState)
		return
	}
	c := p.Opcode.Flags()
	switch {
	case p.Opcode == wire.CNP:
		q.stats.CNPsReceived++
		q.cc.notified(now, q)
	case p.Opcode.Service() != wire.ServiceRC:
		q.drop(DropOpcode)
	case c&wire.IsRequest != 0:
		q.receiveRequest(p, c)
	case c&wire.IsResponse != 0:
		q.receiveResponse(now, p)
	default:
		q.drop(DropOpcode)
	}
}

// Transmit appends packets that may be sent now. more means that out was full. Like
// Receive it may complete requests: memory is read here.
func (q *QP) Transmit(now time.Duration, out *Output) (more bool) {
	// Requests go first, so that a shorter ACK ends a train of equal packets. If they
	// fill out, the responses begin the next time.
	if q.resp.starved {
		q.resp.starved = false
		if q.transmitResponses(now, out) {
			q.transmitRequests(now, out)
			return true
		}
		return q.transmitRequests(now, out)
	}
	if q.transmitRequests(now, out) {
		q.resp.starved = q.resp.owes()
		return true
	}
	return q.transmitResponses(now, out)
}

// AckPending reports whether Transmit would send nothing but an acknowledgement, which
// may wait a moment for data to travel with. It is false if Transmit has nothing to send
// and if it has something that is urgent.
func (q *QP) AckPending() bool {
	r := &q.resp
	return r.ack == owesAck && r.replay.pending == 0 && !q.cc.owesCNP && !q.sendable()
}

// Completions gives what has been completed since the last call, in order. The slice
// is valid until the next call of any method.
func (q *QP) Completions() []Completion {
	if q.doneTaken {
		return nil
	}
	q.doneTaken = true
	return q.done
}

// complete adds a completion and gives it to be filled in.
func (q *QP) complete() *Completion {
	if q.doneTaken {
		q.done, q.doneTaken = q.done[:0], false
	}
	q.done = append(q.done, Completion{})
	c := &q.done[len(q.done)-1]
	c.QPN = q.cfg.QPN
	return c
}

// Events gives the asynchronous events since the last call. The slice is valid until
// the next call of any method.
func (q *QP) Events() []ib.EventType {
	if q.eventsTaken {
		return nil
	}
	q.eventsTaken = true
	return q.events
}

func (q *QP) event(t ib.EventType) {
	if q.eventsTaken {
		q.events, q.eventsTaken = q.events[:0], false
	}
	q.events = append(q.events, t)
}

// begin starts a packet in out if it has room for one with n bytes of payload.
func (q *QP) begin(out *Output, n uint32) bool {
	return len(out.Buf)+wire.MaxHeader+int(n)+3+wire.ICRCLen <= out.Max
}

// end finishes the packet whose headers and payload of n bytes are in b.
func (q *QP) end(out *Output, b []byte, n uint32) {
	switch wire.Pad(int(n)) {
	case 0:
		b = append(b, 0, 0, 0, 0)
	case 1:
		b = append(b, 0, 0, 0, 0, 0)
	case 2:
		b = append(b, 0, 0, 0, 0, 0, 0)
	case 3:
		b = append(b, 0, 0, 0, 0, 0, 0, 0)
	}
	out.Buf = b
	out.Ends = append(out.Ends, len(b))
	q.stats.PacketsSent++
}
