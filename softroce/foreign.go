package softroce

import (
	"runtime"
	"sync"

	"github.com/verbena-rdma/verbena/internal/netio"
)

// A program that has asked for a descriptor waits for it in a system call of its own
// (poll, select, epoll_wait), which Go's scheduler knows nothing about. The thread that it
// takes there may be the one that was going to wait for the sockets: it had just been woken
// by Go's poller to run that very goroutine. No other thread is woken in its place while a
// processor is idle, and Go's monitor looks at the poller only after 10 ms. So as
// long as there are such descriptors, the reader of each socket sleeps in the kernel, on a
// thread that nothing else uses, and has the role of the reader always, but for those
// who poll (see role).
//
// With a single processor it is the other way round: a thread in a system call would keep
// the processor from the rest until the monitor takes it away, and the monitor does
// that at once to a thread in a system call of the program's. There nothing changes.

// foreign counts the descriptors of a provider that a program may be waiting for.
type foreign struct {
	mu  sync.Mutex
	n   int
	eps *endpoints // of the device that is there; nil: none
}

// use adds to the number of descriptors.
func (f *foreign) use(n int) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n += n
	f.tell()
}

// serve says whose sockets are to be read.
func (f *foreign) serve(s *endpoints) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.eps = s
	f.tell()
}

// tell says to the sockets how to read. f.mu is held.
func (f *foreign) tell() {
	if s := f.eps; s != nil && s.foreign.Swap(f.n > 0) != (f.n > 0) {
		s.recall()
	}
}

// recall has every reader look again how to read.
func (s *endpoints) recall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.m {
		switch {
		case e.role.conn == nil:
		case e.role.claim():
			e.handBack()
		default:
			e.role.conn.Interrupt() // who has the role resumes
		}
	}
}

// foreign reports whether somebody may wait for this socket's packets in a system call.
func (e *endpoint) foreign() bool { return e.d.eps.foreign.Load() }

// read is the read of the endpoint's own goroutine.
func (e *endpoint) read() (int, error) {
	if e.foreign() && runtime.GOMAXPROCS(0) > 1 {
		if c, ok := e.conn.(netio.Blocking); ok {
			return c.ReadBlocking(e.ms)
		}
	}
	return e.conn.Read(e.ms)
}

// resign gives a role that is vacant for the sake of one who polls back to the reader, as
// the poller is about to sleep.
func (e *endpoint) resign() {
	if !e.foreign() {
		return
	}
	e.role.polled.Store(0)
	if e.role.claim() {
		e.handBack()
	}
}

// resigned reports whether the poller for whose sake the reader has just vacated the role
// went to sleep meanwhile; the reader has the role again then.
func (e *endpoint) resigned() bool {
	return e.foreign() && e.role.polled.Load() == 0 && e.role.claim()
}
