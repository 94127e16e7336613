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

// entered follows a change to the error state. It does not wait and needs no lock.
func (qp *QP) entered() {
	if f := qp.onError.Swap(nil); f != nil {
		go (*f)()
	}
}
