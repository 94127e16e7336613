package rdma

import (
	"github.com/verbena-rdma/verbena/internal/unix"
)

// readiness is a descriptor whose readability and writability are set, each on its own:
// one end of a pair of sockets. It is readable while the other end has sent it a byte, and
// not writable while it has itself sent more than the other end has taken. The owner has a
// lock, under which all methods are called. The zero readiness is closed.
type readiness struct {
	user, own      int // valid if open
	open           bool
	readable, full bool
}

// plug is what fills the way out. With the smallest send buffer that Linux allows (4.5
// KiB, of which a socket may use a quarter and still be writable) two pages are more than
// enough, and as the buffer is empty they always go.
var plug [8 << 10]byte

// get gives the descriptor, made by the first call.
func (r *readiness) get(readable, writable bool) (int, error) {
	if !r.open {
		user, own, err := unix.StreamPair()
		if err != nil {
			return -1, err
		}
		if err := unix.SetsockoptInt(user, unix.SolSocket, unix.SoSndbuf, 1); err != nil {
			unix.Close(user)
			unix.Close(own)
			return -1, err
		}
		*r = readiness{user: user, own: own, open: true}
	}
	r.set(readable, writable)
	return r.user, nil
}

// set makes the descriptor tell what is so. It does nothing if that has not changed.
func (r *readiness) set(readable, writable bool) {
	if !r.open {
		return
	}
	if readable != r.readable {
		var one [1]byte
		if readable {
			unix.Write(r.own, one[:])
		} else {
			unix.Read(r.user, one[:])
		}
		r.readable = readable
	}
	if writable == r.full {
		if !writable {
			for { // until nothing goes any more
				if n, err := unix.Write(r.user, plug[:]); n <= 0 || err != nil {
					break
				}
			}
		} else {
			var sink [len(plug)]byte
			for {
				if n, err := unix.Read(r.own, sink[:]); n <= 0 || err != nil {
					break
				}
			}
		}
		r.full = !writable
	}
}

// close closes the descriptor. Who still polls it learns nothing any more.
func (r *readiness) close() {
	if r.open {
		unix.Close(r.user)
		unix.Close(r.own)
		*r = readiness{}
	}
}
