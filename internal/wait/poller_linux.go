package wait

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// poller sleeps on a descriptor in Go's poller. The provider keeps its descriptor;
// Go's runtime gets a duplicate, so that closing the one does not close the other.
// Only the leader of a Source uses it; close may be called by anyone.
type poller struct {
	f     *os.File
	rc    syscall.RawConn
	check func(fd uintptr) bool // ready, made once: a method value allocates
	fds   [1]unix.PollFD
	gone  bool
	dead  bool // it reported an error and nothing else

	gated bool // f is an epoll instance, which fd is in, or not
	fd    int
	in    bool
}

func newPoller(fd int) (*poller, error) {
	dup, err := unix.Dup(fd)
	if err != nil {
		return nil, fmt.Errorf("duplicate the event descriptor: %w", err)
	}
	// The flag that adopt sets is shared: the provider's descriptor is non-blocking by contract.
	return adopt(dup)
}

// newGated makes a poller whose descriptor can be taken out of Go's poller, and put back: what is in
// it wakes a thread for each event, whoever waits for that. Between Go's poller and the
// descriptor is an epoll instance, which the descriptor is not in yet.
func newGated(fd int) (*poller, error) {
	ep, err := unix.EpollCreate()
	if err != nil {
		return nil, fmt.Errorf("make an epoll instance for the event descriptor: %w", err)
	}
	p, err := adopt(ep)
	if err != nil {
		return nil, err
	}
	p.gated, p.fd = true, fd
	return p, nil
}

// adopt gives fd to Go's poller; on error it is closed.
func adopt(fd int) (*poller, error) {
	// Without the flag Go's runtime would sleep in a thread.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make the event descriptor non-blocking: %w", err)
	}
	p := &poller{f: os.NewFile(uintptr(fd), "rdma events")}
	var err error
	if p.rc, err = p.f.SyscallConn(); err != nil {
		p.f.Close()
		return nil, err
	}
	if p.f.SetReadDeadline(time.Time{}) != nil {
		// Go's poller has not taken it. It does not say why, but epoll does.
		err := refusal(fd)
		p.f.Close()
		return nil, err
	}
	p.check = p.ready
	return p, nil
}

// enter has Go's poller look at the descriptor, and leave ends that. They cost nothing if it is so.
func (p *poller) enter() error {
	if !p.gated || p.in {
		return nil
	}
	var err error
	if e := p.rc.Control(func(ep uintptr) { err = unix.EpollAdd(int(ep), p.fd, unix.PollIn) }); e != nil {
		return e
	}
	p.in = err == nil
	if err != nil {
		return fmt.Errorf("wait for the descriptor in an epoll instance: %w", err)
	}
	return nil
}

func (p *poller) leave() {
	if p.gated && p.in {
		p.in = false
		p.rc.Control(func(ep uintptr) { unix.EpollDel(int(ep), p.fd) })
	}
}

// refusal gives the error with which epoll refuses a descriptor: nested too deeply, as many
// watches as the system permits, not a file that can be waited for.
func refusal(fd int) error {
	ep, err := unix.EpollCreate()
	if err == nil {
		err = unix.EpollAdd(ep, fd, unix.PollIn)
		unix.Close(ep)
	}
	if err == nil {
		err = syscall.EPERM // it was so a moment ago
	}
	return fmt.Errorf("wait for the descriptor in Go's poller: %w", err)
}

// ready asks the descriptor itself. The runtime calls it before it sleeps and after
// each edge, so an edge that came before the sleep is not lost.
func (p *poller) ready(fd uintptr) bool {
	if p.gated {
		fd = uintptr(p.fd)
	}
	p.fds[0] = unix.PollFD{Fd: int32(fd), Events: unix.PollIn}
	n, err := unix.Poll(p.fds[:], 0)
	if err != nil {
		p.gone = true
		return true
	}
	re := p.fds[0].Revents
	p.gone = n > 0 && re&unix.PollIn == 0
	return n > 0
}

// wait sleeps until the descriptor is readable, or reports an error (gone).
func (p *poller) wait(ctx context.Context) (gone bool, err error) {
	if ctx.Done() != nil {
		woke := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(woke)
			p.f.SetReadDeadline(time.Unix(1, 0))
		})
		defer func() {
			if !stop() {
				<-woke // else it could end the next wait
				p.f.SetReadDeadline(time.Time{})
			}
		}()
	}
	p.gone = false
	if err := p.rc.Read(p.check); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		// The runtime refuses a descriptor with an error condition, and a closed one;
		// the caller tells the two apart.
		return true, nil
	}
	return p.gone, nil
}

func (p *poller) close() { p.f.Close() }
