package verbs

import "github.com/verbena-rdma/verbena/ib"

// OnError has f called once, in a goroutine of its own, when the queue pair enters the
// error state, whatever the cause, which Err gives; at once, if it is there. It replaces
// what was set before; nil ends it, but a call may be on its way. It is for owners of
// connections that do not read the completions, as package cm; who does read them learns
// it there.
func (qp *QP) OnError(f func()) {
	if qp == nil || qp.name == nil {
		return
	}
	if f == nil {
		qp.onError.Store(nil)
		return
	}
	qp.onError.Store(&f)
	if qp.State() == ib.StateError {
		qp.entered()
	}
}

// OnRecv has f called once, in a goroutine of its own, when a receive of the queue pair
// has completed and its completion been taken from the device; not with an SRQ. It
// replaces what was set before; nil ends it, but a call may be on its way. Package cm
// uses it: data shows that the peer has finished connecting.
func (qp *QP) OnRecv(f func()) {
	if qp == nil || qp.name == nil {
		return
	}
	// The count sends completions the long way round, so that others pay nothing.
	switch {
	case f == nil:
		if qp.onRecv.Swap(nil) != nil {
			qp.rq.detours.Add(-1)
		}
	case qp.onRecv.Swap(&f) == nil:
		qp.rq.detours.Add(1)
	}
}

// received follows the completion of a receive. It does not wait.
func (qp *QP) received() {
	if f := qp.onRecv.Swap(nil); f != nil {
		qp.rq.detours.Add(-1)
		go (*f)()
	}
}

// entered follows a change to the error state. It does not wait and needs no lock.
func (qp *QP) entered() {
	if f := qp.onError.Swap(nil); f != nil {
		go (*f)()
	}
}
