package scripted

import "github.com/verbena-rdma/verbena/internal/unix"

// descriptor is a level that select, poll and epoll see. Usually it is an eventfd; one
// that shall be able to report an error is a socket, as an eventfd never does.
type descriptor struct {
	buf  [8]byte
	fd   int // what users wait for
	peer int // the other end of a socket; -1: fd is an eventfd
}

func newDescriptor(errs bool) (*descriptor, error) {
	if errs {
		fd, peer, err := socketPair()
		return &descriptor{fd: fd, peer: peer}, err
	}
	fd, err := unix.Eventfd()
	return &descriptor{fd: fd, peer: -1}, err
}

// set makes it readable, or not.
func (d *descriptor) set(on bool) {
	b := &d.buf // on the stack it would be allocated, under the race detector
	switch {
	case d.peer < 0 && on:
		unix.EventfdSignal(d.fd)
	case d.peer < 0:
		unix.EventfdDrain(d.fd)
	case on:
		unix.Write(d.peer, b[:1])
	default:
		unix.Read(d.fd, b[:])
	}
}

// fail has it report an error (EPOLLERR) and no data, for good.
func (d *descriptor) fail() {
	unix.Write(d.fd, make([]byte, 1)) // what is lost is the error
	disconnect(d.peer)
}

func (d *descriptor) close() {
	unix.Close(d.fd)
	if d.peer >= 0 {
		unix.Close(d.peer)
	}
}
