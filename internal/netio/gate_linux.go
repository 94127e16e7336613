package netio

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// gate lets a goroutine sleep in Go's poller until one condition of a descriptor holds.
//
// Go registers each descriptor for both directions. A datagram socket then tells, whenever
// a datagram has left its buffer, that it can be written to, and a thread wakes for it. On
// the loopback that is inside of each send. So the socket is in an epoll set of its own,
// for one direction, and it is that set that Go's poller knows.
type gate struct {
	ep int
	f  *os.File
	rc syscall.RawConn
}

// open makes the set and puts fd into it; events 0: nothing is waited for yet.
func (g *gate) open(fd int, events uint32) error {
	ep, err := unix.EpollCreate()
	if err != nil {
		return fmt.Errorf("epoll set of a socket: %w", err)
	}
	if err = unix.EpollAdd(ep, fd, events); err == nil {
		err = unix.SetNonblock(ep, true) // or os.NewFile does not give it to the poller
	}
	if err != nil {
		unix.Close(ep)
		return fmt.Errorf("epoll set of a socket: %w", err)
	}
	g.ep, g.f = ep, os.NewFile(uintptr(ep), "epoll set of a socket")
	if g.rc, err = g.f.SyscallConn(); err == nil {
		err = g.f.SetReadDeadline(time.Time{}) // fails if the poller has not taken it
	}
	if err != nil {
		g.f.Close()
		return fmt.Errorf("epoll set of a socket, in Go's poller: %w", err)
	}
	return nil
}

// wait calls f until it gives true, sleeping between the calls until the condition holds
// anew.
func (g *gate) wait(f func(uintptr) bool) error {
	err := g.rc.Read(f)
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return net.ErrClosed // what os says of a closed file is no network error
}

// ask changes the condition. It is not told twice while it goes on to hold.
func (g *gate) ask(fd int, events uint32) error { return unix.EpollMod(g.ep, fd, events) }

// interrupt has wait fail with os.ErrDeadlineExceeded until resume.
func (g *gate) interrupt() { _ = g.f.SetReadDeadline(past) } // fails if closed: wait fails then anyway
func (g *gate) resume()    { _ = g.f.SetReadDeadline(time.Time{}) }

// close ends wait.
func (g *gate) close() { g.f.Close() }
