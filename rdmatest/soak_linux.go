package rdmatest

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs"
)

// recheckLimit is after how long a sleeper looks without being told.
const recheckLimit = time.Second

// soakDescriptorWays are the ways that need descriptors.
func soakDescriptorWays() []soakWay {
	return []soakWay{
		{"select", soakByDescriptor(openSelect)},
		{"poll", soakByDescriptor(openPoll)},
		{"epoll", soakByDescriptor(openEpoll(unix.PollIn))},
		{"edge", soakByDescriptor(openEpoll(unix.PollIn | epollET))},
		{"Loop epoll", soakByLoop(event.Epoll)},
		{"Loop poll", soakByLoop(event.Poll)},
		{"Loop select", soakByLoop(event.Select)},
	}
}

const epollET = 1 << 31 // EPOLLET

// sleeper waits until a descriptor is readable, at most for recheckLimit.
type sleeper func() (readable bool, err error)

func openPoll(fd int) (sleeper, func(), error) {
	fds := []unix.PollFD{{Fd: int32(fd), Events: unix.PollIn}}
	return func() (bool, error) {
		n, err := unix.Poll(fds, recheckLimit)
		return n > 0, err
	}, func() {}, nil
}

func openEpoll(events uint32) func(fd int) (sleeper, func(), error) {
	return func(fd int) (sleeper, func(), error) {
		ep, err := unix.EpollCreate()
		if err != nil {
			return nil, nil, err
		}
		if err := unix.EpollAdd(ep, fd, events); err != nil {
			unix.Close(ep)
			return nil, nil, err
		}
		var evs [1]unix.EpollEvent
		return func() (bool, error) {
			n, err := unix.EpollWait(ep, evs[:], recheckLimit)
			return n > 0, err
		}, func() { unix.Close(ep) }, nil
	}
}

// openSelect uses a timer's descriptor for the limit.
func openSelect(fd int) (sleeper, func(), error) {
	timer, err := unix.Timerfd()
	if err != nil {
		return nil, nil, err
	}
	return func() (bool, error) {
		if err := unix.TimerfdSet(timer, recheckLimit); err != nil {
			return false, err
		}
		var r, w unix.FDSet
		r.Set(fd)
		r.Set(timer)
		n, err := unix.Select(max(fd, timer)+1, &r, &w, true)
		return n > 0 && r.IsSet(fd), err
	}, func() { unix.Close(timer) }, nil
}

// soakByDescriptor is the loop of a program that waits for the channel's descriptor: look,
// arm, look again, sleep, take all events.
func soakByDescriptor(open func(fd int) (sleeper, func(), error)) func(ctx context.Context, s *soakRun) error {
	return func(ctx context.Context, s *soakRun) error {
		ch, err := s.cq.Channel()
		if err != nil {
			return err
		}
		fd, err := ch.FD()
		if err != nil {
			return err
		}
		sleep, end, err := open(fd)
		if err != nil {
			return err
		}
		defer end()
		var dst [4]verbs.WC
		late := false // the last sleep ended without a sign
		for ctx.Err() == nil {
			n, err := s.cq.Poll(dst[:])
			if err != nil {
				return err
			}
			if n > 0 {
				if late {
					// Unless the sign has come just now.
					if told, err := readable(fd); err != nil {
						return err
					} else if !told {
						s.rescued++
					}
				}
				late = false
				if more, err := s.messages(dst[:n]); !more || err != nil {
					return err
				}
				continue
			}
			late = false
			ready, err := s.cq.Arm(ib.NotifyAny)
			if err != nil {
				return err
			}
			if ready {
				continue
			}
			s.sleeps++
			start := time.Now()
			told, err := sleep()
			if err != nil {
				return err
			}
			if !told {
				late = time.Since(start) >= recheckLimit // else a signal has ended the sleep
				continue
			}
			for {
				_, ok, err := ch.TryEvent()
				if err != nil {
					return err
				}
				if !ok {
					break
				}
			}
		}
		return nil
	}
}

// soakByLoop waits in an event.Loop.
func soakByLoop(b event.Backend) func(ctx context.Context, s *soakRun) error {
	return func(ctx context.Context, s *soakRun) (err error) {
		l, err := event.New(&event.Config{Backend: b})
		if err != nil {
			return err
		}
		defer func() {
			st := l.Stats()
			s.sleeps, s.rescued = st.Sleeps, st.Rescued
			err = errors.Join(err, l.Close())
		}()
		var fault error
		_, err = l.CQ(s.cq, func(wc verbs.WC) {
			if more, err := s.message(&wc); !more || err != nil {
				fault = err
				l.Stop()
			}
		})
		if err != nil {
			return err
		}
		return errors.Join(l.Run(ctx), fault)
	}
}
