package verbs

import (
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// channelFD is what CompChannel.FD and AsyncEvents.FD give: an epoll instance over the provider's
// descriptor and an eventfd for the events that the library makes. It exists from the
// first FD on.
type channelFD struct {
	made, up bool
	ep, ev   int
}

// open gives the descriptor.
func (f *channelFD) open(d driver.Notifier, up bool) (int, error) {
	if f.made {
		return f.ep, nil
	}
	fd, err := d.FD()
	if err != nil {
		return -1, err
	}
	ep, err := unix.EpollCreate()
	if err != nil {
		return -1, err
	}
	ev, err := unix.Eventfd()
	if err != nil {
		unix.Close(ep)
		return -1, err
	}
	for _, fd := range []int{fd, ev} {
		if err := unix.EpollAdd(ep, fd, unix.PollIn); err != nil {
			unix.Close(ev)
			unix.Close(ep)
			return -1, err
		}
	}
	f.made, f.ep, f.ev = true, ep, ev
	if up {
		f.raise()
	}
	return ep, nil
}

// raise and lower say whether the library has an event.
func (f *channelFD) raise() {
	if f.made && !f.up {
		f.up = true
		unix.EventfdSignal(f.ev)
	}
}

func (f *channelFD) lower() {
	if f.made && f.up {
		f.up = false
		unix.EventfdDrain(f.ev)
	}
}

func (f *channelFD) close() {
	if f.made {
		unix.Close(f.ep)
		unix.Close(f.ev)
		f.made = false
	}
}
