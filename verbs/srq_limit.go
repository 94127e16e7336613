package verbs

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// srqLimit is what is known of an SRQ's limit. A device that has fewer receives already when
// the limit is set should send the event at once (IBTA Vol 1 §10.2.9.4), but some do with the next
// receive that is taken, and if none is left that never comes. So the library looks, and has the event
// of an arm if the device did not; never do both.
type srqLimit struct {
	armed int  // zero: the event has come, or none was asked for
	told  bool // the event was the library's: that of the device, if there is one, is not given
}

// below says that n receives are left, and whether the library has the event. emu is held.
func (l *srqLimit) below(n int) (tell bool) {
	if n >= l.armed {
		return false
	}
	*l = srqLimit{told: true}
	return true
}

// limitReached says that an event of the device has come; false: it is not to be given.
func (s *SRQ) limitReached() bool {
	s.emu.Lock()
	defer s.emu.Unlock()
	s.limit.armed = 0
	return !s.limit.told
}

// Query asks the device (ibv_query_srq). The limit is zero when its event has come.
func (s *SRQ) Query() (maxWR, limit int, err error) {
	err = s.control("query srq", func() (err error) {
		maxWR, limit, err = s.d.Query()
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	s.emu.Lock()
	defer s.emu.Unlock()
	if s.limit.told {
		limit = 0
	}
	return maxWR, limit, nil
}

// SetLimit asks for one ib.EventSRQLimitReached when fewer than n receives are left, or at once if
// there are fewer now; zero ends that (ibv_modify_srq). Receives count as left until their
// completions are polled, or the device says more. The event is the device's, or the library's
// where the device would be late.
func (s *SRQ) SetLimit(n int) error {
	return s.control("set srq limit", func() error {
		if n < 0 || n > s.max {
			return fmt.Errorf("the limit must be in 0..%d: %w", s.max, syscall.EINVAL)
		}
		return s.arm(n)
	})
}

// arm sets the limit; s.mu is held, so no receive is posted meanwhile. The device is not asked for
// an event that is due: it would be given twice, or have to be told from that of the next arm.
func (s *SRQ) arm(n int) error {
	s.emu.Lock()
	was := s.limit
	s.limit = srqLimit{armed: n}
	tell := s.limit.below(s.n)
	s.emu.Unlock()
	ask := n
	if tell {
		ask = 0
	}
	if err := s.d.Modify(-1, ask); err != nil {
		s.emu.Lock()
		defer s.emu.Unlock()
		if tell || s.limit.armed == n {
			s.limit = was
		}
		return err
	}
	if !tell { // receives may have been taken while the device did not look yet
		s.emu.Lock()
		tell = s.limit.below(s.n)
		s.emu.Unlock()
		if tell {
			s.d.Modify(-1, 0) // it has just taken another; an event of it is dropped
		}
	}
	if tell {
		s.dev.async.tell(s.handle)
	}
	return nil
}

// tell puts the event of an SRQ's limit before those of the device.
func (a *AsyncEvents) tell(handle uint64) {
	a.mu.Lock()
	a.soft = append(a.soft, handle)
	if len(a.soft) == 1 {
		a.fd.raise()
	}
	a.mu.Unlock()
	a.src.Kick()
}

// next takes one event, of the library or of the device. One of the device that the library had
// before is dropped.
func (a *AsyncEvents) next() (driver.AsyncEvent, bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.soft) > 0 {
		ev := driver.AsyncEvent{Type: ib.EventSRQLimitReached, Handle: a.soft[0]}
		if a.soft = append(a.soft[:0], a.soft[1:]...); len(a.soft) == 0 {
			a.fd.lower()
		}
		return ev, true, nil
	}
	for {
		ev, ok, err := a.d.Next()
		if !ok || err != nil || ev.Type != ib.EventSRQLimitReached {
			return ev, ok, err
		}
		if s := a.dev.srqByHandle(ev.Handle); s == nil || s.limitReached() {
			return ev, true, nil
		}
	}
}
