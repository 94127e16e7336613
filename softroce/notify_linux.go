package softroce

import (
	"fmt"
	"net"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// eventFD is an eventfd whose counter is 1 while the level is set, and 0 otherwise.
// Its user has a lock.
type eventFD struct {
	fd     int // the descriptor + 1; 0: none
	up     bool
	closed bool
}

func (e *eventFD) open(level bool) (int, error) {
	if e.closed {
		return -1, net.ErrClosed
	}
	if e.fd == 0 {
		fd, err := unix.Eventfd()
		if err != nil {
			return -1, fmt.Errorf("softroce: event descriptor: %w", err)
		}
		e.fd = fd + 1
		if level {
			e.raise()
		}
	}
	return e.fd - 1, nil
}

func (e *eventFD) there() bool { return e.fd != 0 }

func (e *eventFD) raise() {
	if e.fd != 0 && !e.up {
		e.up = unix.EventfdSignal(e.fd-1) == nil
	}
}

func (e *eventFD) lower() {
	if e.fd != 0 && e.up {
		unix.EventfdDrain(e.fd - 1)
		e.up = false
	}
}

func (e *eventFD) close() {
	if e.fd != 0 {
		unix.Close(e.fd - 1)
	}
	*e = eventFD{closed: true}
}
