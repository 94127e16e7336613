package cm

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/verbena-rdma/verbena/verbs"
)

// half is what a Request and a Route have in common: an id that becomes a connection
// once, or is closed.
type half struct {
	id *ID

	mu     sync.Mutex
	begun  bool // Accept or Connect was called
	closed bool
	handed bool // the id belongs to a Conn now
}

// begin allows one attempt.
func (h *half) begin(op string) error {
	if h == nil || h.id == nil {
		return opError(op, wrong("cm: nil or zero object"))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return h.id.fail(op, net.ErrClosed)
	case h.begun:
		return h.id.fail(op, &stateError{have: stateEnded, need: "it can be called once"})
	}
	h.begun = true
	return nil
}

// finish hands the id over to a Conn, or closes it after an error: memory named in
// posted receives is the caller's again.
func (h *half) finish(op string, err error) (*Conn, error) {
	if err == nil {
		h.mu.Lock()
		h.handed = !h.closed
		h.mu.Unlock()
		if h.handed {
			return newConn(h.id), nil
		}
		err = h.id.fail(op, net.ErrClosed)
	}
	h.close()
	return nil, err
}

func (h *half) close() error {
	if h == nil || h.id == nil {
		return opError(opClose, wrong("cm: nil or zero object"))
	}
	h.mu.Lock()
	handed := h.handed
	h.closed = h.closed || !handed
	h.mu.Unlock()
	if handed {
		return nil
	}
	return h.id.Close()
}

// Request is a peer that wants to connect. It must be accepted or closed; Close
// rejects. A peer that gives up meanwhile shows in Accept's error.
type Request struct {
	h       half
	private []byte
	param   ConnParam
}

func newRequest(ev *Event) *Request {
	return &Request{h: half{id: ev.ID}, private: ev.Private, param: ev.Param}
}

// ID gives the id below, for what this floor does not have; its calls wait. It is nil
// for a nil Request.
func (r *Request) ID() *ID {
	if r == nil {
		return nil
	}
	return r.h.id
}

// Device gives the device on which the request came: with a wildcard listener that can
// be any. What the queue pair needs is to be made on it.
func (r *Request) Device() *verbs.Device { return r.ID().Device() }

// Port gives the port of the device, from 1.
func (r *Request) Port() int { return r.ID().Port() }

// RemoteAddr gives the peer's address.
func (r *Request) RemoteAddr() netip.AddrPort { return r.ID().RemoteAddr() }

// LocalAddr gives the address that the peer asked for.
func (r *Request) LocalAddr() netip.AddrPort { return r.ID().LocalAddr() }

// Private gives what the peer sent with its request. IB and RoCE pad it with zeros, to
// 56 bytes: carry a length, or use a fixed format.
func (r *Request) Private() []byte {
	if r == nil {
		return nil
	}
	return r.private
}

// Param gives what the peer asked for, seen from this side; see ConnParam.
func (r *Request) Param() ConnParam {
	if r == nil {
		return ConnParam{}
	}
	return r.param
}

// CreateQP makes the queue pair, ready for receives. Post them before Accept. See
// ID.CreateQP.
func (r *Request) CreateQP(pd *verbs.PD, cfg verbs.QPConfig) (*verbs.QP, error) {
	return r.ID().CreateQP(pd, cfg)
}

// Accept answers yes and waits until the connection stands. Data may arrive before
// it returns. If it fails, for whatever reason, ctx included, everything that the
// request made is closed before it returns, and the peer is told. It can be called
// once. A peer that disconnected at once is no failure: data of it may be waiting, and
// Conn.Done is closed.
func (r *Request) Accept(ctx context.Context, p *ConnParam) (*Conn, error) {
	if r == nil {
		return nil, opError(opAccept, wrong("cm: the request is nil"))
	}
	if err := r.h.begin(opAccept); err != nil {
		return nil, err
	}
	id := r.h.id
	err := id.fail(opAccept, ctx.Err())
	if err == nil {
		if err = id.accept(p); err == nil {
			err = id.await(ctx, opAccept, func() (bool, error) { return id.state != stateAccepting, id.opErr })
		}
	}
	return r.h.finish(opAccept, err)
}

// Reject answers no, with up to 148 bytes, and closes the request. It does not block.
func (r *Request) Reject(private []byte) error {
	if r == nil {
		return opError(opReject, wrong("cm: the request is nil"))
	}
	if err := r.h.begin(opReject); err != nil {
		return err
	}
	err := r.h.id.Reject(private)
	if cerr := r.h.close(); err == nil {
		err = cerr
	}
	return err
}

// Close rejects, unless the request was accepted or rejected, and closes what it made.
// A call of Accept in progress fails. It is idempotent.
func (r *Request) Close() error {
	if r == nil {
		return opError(opClose, wrong("cm: the request is nil"))
	}
	return r.h.close()
}
