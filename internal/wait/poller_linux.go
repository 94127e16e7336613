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
}

func newPoller(fd int) (*poller, error) {
	dup, err := unix.Dup(fd)
	if err != nil {
		return nil, fmt.Errorf("duplicate the event descriptor: %w", err)
	}
	// The provider's descriptor is non-blocking by contract, and the flag is shared;
	// without it Go's runtime would sleep in a thread.
	if err := unix.SetNonblock(dup, true); err != nil {
		unix.Close(dup)
		return nil, fmt.Errorf("make the event descriptor non-blocking: %w", err)
	}
	p := &poller{f: os.NewFile(uintptr(dup), "rdma events")}
	if p.rc, err = p.f.SyscallConn(); err != nil {
		p.f.Close()
		return nil, err
	}
	if p.f.SetReadDeadline(time.Time{}) != nil {
		// Go's poller has not taken it. It does not say why, but epoll does.
		err := refusal(dup)
		p.f.Close()
		return nil, err
	}
	p.check = p.ready
	return p, nil
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
