// Package event waits for many things at once: CM channels, completion queues,
// asynchronous events, ordinary descriptors, timers, and calls from other goroutines. A
// Loop runs on epoll, poll or select with the same results. There are three ways to drive
// it: a goroutine of its own (Run), a foreign loop that calls it (Turn), and a foreign loop
// that it is nested in (FD).
//
//	loop, err := event.New(nil)
//	...
//	loop.CM(ch, func(ev cm.Event) { ... })
//	loop.CQ(cq, func(wc verbs.WC) { ... })
//	loop.File(sock, event.Readable, func(event.Mask) { ... })
//	loop.After(time.Second, func() { ... })
//	err = loop.Run(ctx)
//
// Handlers run one after the other, in the goroutine that is in Run or Turn, so what only
// handlers use needs no lock. A handler must not wait: while it does, nothing else is
// served. Everything that a handler may want to do to the loop is allowed in it: add
// sources, close watches and sources, its own too, set timers, Stop and Close; but not Run
// and Turn.
//
// # A turn
//
// In a turn the loop asks the system once which sources are ready, calls the functions of
// timers that are due and of Do, and then serves each source that has something, in the
// order in which they were registered, with at most Config.Batch calls of each. What is
// left over is served in the next turn, before which the loop does not sleep.
//
// A completion queue is served in the only order that loses no wake-up: poll until it is
// empty, arm, look again, and sleep only if nothing was found. The code for that is that of
// package verbs. Only queues whose channel has fired, or that had completions in this turn
// or the one before, are polled and armed: a thousand idle ones cost nothing.
//
// Completions and events are taken one at a time, just before their handler is called. So
// what a handler has not seen, as it panicked, or as the watch or the queue pair was
// closed, is not lost or is not delivered, whichever is right: a panic passes through Run
// or Turn to its caller, and the next turn goes on with the next completion; after
// Watch.Close the queue still has the rest; after the queue pair's Close there is nothing
// of it any more.
//
// # The end of a source
//
// A source that fails, as its device is gone, it was closed by somebody else, or its
// descriptor was closed, ends its watch: the function of Watch.OnError is called, or, if
// there is none, Run or Turn gives the error. To end a watch in good order, call
// Watch.Close before the source is closed.
//
// An ordinary descriptor that was closed under the loop is noticed when it would be served,
// when its number is watched again, and, while the loop has something to do, every
// Config.Recheck. Its handler is never called for another file that has got the number.
//
// # Which way to wait
//
// Programs with a goroutine for each connection need no loop: verbs.CQ.Wait and the Event
// methods of the sources park goroutines, without threads. A loop is for programs that
// have one anyway, for those that serve thousands of sources from a few goroutines, and
// for state that is simpler without locks.
//
// # For who knows C
//
// A handler of CQ is given what ibv_get_cq_event, ibv_ack_cq_events, ibv_req_notify_cq and
// ibv_poll_cq are called for, one of CM what rdma_get_cm_event and rdma_ack_cm_event, one of
// Async what ibv_get_async_event and ibv_ack_async_event. Streams (rdma.Conn.FD with File)
// are waited for as rpoll and repoll_wait do. The rest is a loop of epoll, poll or select.
//
// # Memory
//
// A turn allocates nothing, nor do Do and the methods of Timer; registrations and After do. A loop keeps nothing of a completion or an event after its handler has returned.
//
// Loops work on Linux. Elsewhere New gives an error that wraps errors.ErrUnsupported.
package event
