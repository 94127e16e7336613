// Package verbs is libibverbs with Go's habits: devices, protection domains,
// memory, completion queues, queue pairs, and the events of a device.
//
// # Lifetime
//
// A child keeps its parents alive: QP → PD, CQs, SRQ; MR → PD, Buffer; CQ →
// CompChannel → Device. Close may come in any order: it says that the caller is
// done. The object takes no more calls and no more children, and is destroyed when
// its last child has been closed; so defers in any order are right, and there is no
// EBUSY. Close is idempotent, waits for calls on the object that are in progress,
// and later calls give an error that wraps net.ErrClosed. Nothing is closed by the
// garbage collector: a lost object leaks, is counted (Device.Objects) and fails
// tests that use rdmatest.CheckLeaks, but memory that a device may touch never goes
// away by itself.
//
// # Memory
//
// A context bounds a wait, never an operation. Memory named in a request belongs
// to the device from the post until the request's completion has been polled, or
// QP.Close has returned. Reading it early may give torn data, writing it early may
// send torn data. Freeing it early is impossible: a Buffer is unmapped when its last
// MR is closed, and MR.Close takes the device's right away before it returns
// (requests still in flight then fail with StatusLocProt).
//
// # Exactly one completion
//
// Every receive request and every signaled send request gives exactly one
// completion; an unsignaled one gives one only if it fails. After an error the
// device flushes them; what a device has not flushed after a second (some never do)
// the library completes, with StatusWRFlush and WC.Synthetic. QP.Close ends that: nothing
// of the queue pair is given after it.
//
// When a completion has failed, QP.Err says why the queue pair failed: io.EOF if
// the peer disconnected, else the first bad completion, event or call.
//
// # Waiting
//
// CQ.Wait, Next and Completions park the goroutine and hold no thread. They arm, look
// again, sleep, take all events and begin anew: the only order that loses no wake-up.
// (On kernel devices a wait that follows short ones sleeps in the device's descriptor first,
// for 8 ms at most, as a program in C does: that is quicker to wake. It holds a thread so long;
// half as many goroutines as there are processors do so at a time, and the end of a context is
// seen within 4 ms.)
// Programs with an event loop of their own call Arm, which says whether to poll now,
// wait for CompChannel.FD, and take events with TryEvent until there is none. Both ways
// at once on one channel give ErrOneConsumer. A context that has ended wins over what is
// there, everywhere: its error is given and nothing is taken.
//
// # Concurrency
//
// All methods may be called from several goroutines. Order between posts of two
// goroutines is not defined. One goroutine should consume a CQ: a completion goes
// to whoever polls first.
//
// # Zero values
//
// Objects come from constructors. Methods of a nil or zero object give an error
// that wraps syscall.EINVAL. Zero fields of configurations mean the default that
// their comment states.
package verbs
