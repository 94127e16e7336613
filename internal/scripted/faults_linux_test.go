package scripted_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// What kernels do to those who wait, for each source of events and each way of waiting.

// TestC244_FaultReadableThenNothing: readiness is a hint (P11, C-244).
func TestC244_FaultReadableThenNothing(t *testing.T) {
	each(t, func(b *bench, s source) {
		s.glitch()
		b.nothing(s)
		s.glitch()
		done := b.asleep(s)
		for range 3 {
			s.glitch()
			time.Sleep(time.Millisecond)
		}
		select {
		case got := <-done:
			b.Fatalf("a glitch ended the wait with %q", got)
		default:
		}
		s.next()
		if got := <-done; got != "next" {
			b.Errorf("got %q", got)
		}
	})
}

// TestC243_FaultSpurious: events about what does not exist are dropped; those that are about
// something and mean nothing are given, and harm nobody (P19, C-243).
func TestC243_FaultSpurious(t *testing.T) {
	each(t, func(b *bench, s source) {
		for _, stray := range s.stray {
			stray()
		}
		b.nothing(s)
		done := b.asleep(s)
		for _, stray := range s.stray {
			stray()
			time.Sleep(time.Millisecond)
		}
		s.next()
		if got := <-done; got != "next" {
			b.Errorf("got %q behind stray events", got)
		}
		for _, odd := range s.odd {
			odd()
			if s.name == "CompChannel" {
				b.want(s, "next")
				continue
			}
			b.want(s, "odd")
		}
		s.next()
		b.want(s, "next")
		if b.qp.Err() != nil {
			b.Errorf("a stray event ended the queue pair: %v", b.qp.Err())
		}
	})
}

// TestFault_DestroyedObject: events of objects that were closed meanwhile, which waited to
// be fetched, come late, or come when their number is used again (P19).
func TestFault_DestroyedObject(t *testing.T) {
	each(t, func(b *bench, s source) {
		late := s.retire()
		late()
		late()
		s.next()
		for {
			got, err := b.wait(b.limit(), s)
			if err != nil {
				b.Fatal(err)
			}
			if got == "next" {
				break
			}
			if strings.Contains(got, "true") {
				b.Errorf("%q names an object", got)
			}
		}
		done := b.asleep(s)
		late()
		if s.name == "AsyncEvents" { // given, without an object
			if got := <-done; got != "odd false false false" {
				b.Errorf("got %q", got)
			}
			return
		}
		time.Sleep(time.Millisecond)
		s.next()
		if got := <-done; got != "next" {
			b.Errorf("got %q", got)
		}
	})
}

// TestFault_EventBeforeDestroy: what was queued before an object was closed is not given
// after it.
func TestFault_EventBeforeDestroy(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, w)
			s := b.sources()
			cq, scq := b.queue()
			h := scq.Handle()
			_, err := cq.Arm(ib.NotifyAny)
			b.ok(err)
			scq.Push(driver.WC{}, false)
			if b.sch.Queued() != 1 {
				t.Fatal("no event")
			}
			b.ok(cq.Close())
			b.nothing(s[1])
			b.sch.Post(h) // a provider that does not purge
			b.nothing(s[1])

			qp, sqp := b.pair(b.cq)
			sqp.Event(ib.EventQPFatal)
			b.ok(qp.Close())
			b.want(s[2], "odd false false false")
			b.nothing(s[2])

			id := b.newID()
			b.raw(id).Post(driver.CMEvent{Type: cm.AddrChange})
			stale := driver.CMEvent{Type: cm.AddrChange, Handle: b.raw(id).Handle()}
			b.ok(id.Close())
			b.smc.Post(stale)
			b.nothing(s[3])
		})
	}
}

// TestFault_RepeatedTerminal: the first end counts, each later one is harmless, and waiters
// are told (P22, C-222).
func TestFault_RepeatedTerminal(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, w)
			s := b.sources()
			// Of a queue pair.
			qp, sqp := b.pair(b.cq)
			for range 3 {
				sqp.Event(ib.EventQPFatal)
			}
			sqp.Event(ib.EventQPAccessErr)
			for range 4 {
				b.want(s[2], "odd false true")
			}
			if qp.Err() != verbs.EventError(ib.EventQPFatal) {
				t.Errorf("the cause is %v", qp.Err())
			}
			b.ok(qp.Close())
			// Of a completion queue: who waits is told, and told again.
			cq, scq := b.queue()
			qp2, _ := b.pair(cq)
			done := make(chan error, 1)
			if !w.poll {
				go func() {
					for {
						if _, err := cq.Next(b.limit()); err != nil {
							done <- err
							return
						}
					}
				}()
				time.Sleep(time.Millisecond)
			}
			scq.Overrun()
			scq.Overrun()
			b.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventCQErr, Handle: scq.Handle(), Port: 1})
			b.want(s[2], "odd true")
			b.want(s[2], "odd true")
			if !w.poll {
				if err := <-done; err == nil || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the waiter of a broken queue got %v", err)
				}
			}
			if qp2.Err() == nil {
				t.Error("a broken queue ends no queue pair")
			}
			b.ok(qp2.Close())
			b.ok(cq.Close())
			// Of a connection: events come, in their order, and nothing happens twice.
			for _, typ := range []ib.CMEventType{cm.Disconnected, cm.Unreachable, cm.DeviceRemoval, cm.Disconnected, cm.DeviceRemoval} {
				b.raw(b.id).Post(driver.CMEvent{Type: typ, Status: -int(syscall.ETIMEDOUT)})
			}
			for {
				_, ok, err := s[3].try()
				b.ok(err)
				if !ok {
					break
				}
			}
			b.raw(b.id).Post(driver.CMEvent{Type: cm.AddrChange})
			b.want(s[3], "next")
		})
	}
}

// TestFault_DeviceGoneTwice: DEVICE_FATAL may be repeated; then every wait says that the
// device is gone, whoever asks and however often (P46).
func TestFault_DeviceGoneTwice(t *testing.T) {
	each(t, func(b *bench, s source) {
		if s.name == "CM" {
			b.man.Break(driver.ErrDeviceGone)
		} else {
			b.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventDeviceFatal, Port: 1})
			b.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventDeviceFatal, Port: 1})
			b.p.Device("").Remove()
		}
		for range 3 {
			var err error
			for err == nil {
				_, err = b.wait(b.limit(), s)
			}
			if !errors.Is(err, driver.ErrDeviceGone) {
				b.Errorf("got %v", err)
			}
		}
	})
}

// TestC260_FaultDropped: a kernel without memory drops an event. CQ.Wait finds the completion
// by its re-check; a program that arms anew, or asks for the state, finds it too (P15, P48,
// C-260).
func TestC260_FaultDropped(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, w)
			s := b.sources()
			b.dev.SetRecheck(20 * time.Millisecond)
			b.scq.Swallow(1)
			if !w.poll {
				done := b.asleep(s[0])
				for !b.scq.Asleep() {
					time.Sleep(time.Millisecond)
				}
				s[0].next()
				if got := <-done; got != "next" {
					t.Errorf("got %q", got)
				}
				if st := b.cq.Stats(); st.Rescued != 1 {
					t.Errorf("%+v, want one rescue", st)
				}
			} else {
				b.nothing(s[0])
				s[0].next()
				b.nothing(s[1]) // the event is lost
				if ready, err := b.cq.Arm(ib.NotifyAny); !ready || err != nil {
					t.Errorf("Arm does not tell of what is there: %v, %v", ready, err)
				}
				b.want(s[0], "next")
			}
			s[0].next()
			b.want(s[0], "next")
			// An asynchronous event that is lost: the state is asked for, not derived.
			port := scripted.DefaultPort()
			port.State = ib.PortDown
			b.p.Device("").SetPort(port)
			if a, err := b.dev.Port(1); err != nil || a.State != ib.PortDown {
				t.Errorf("the port is %v, %v", a.State, err)
			}
			// One of the connection manager: the deadline is the caller's.
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
			defer cancel()
			if _, err := b.wait(ctx, s[3]); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			s[3].next()
			b.want(s[3], "next")
		})
	}
}

// TestFault_Late: an event comes long after its completion was polled, when the queue is
// armed again, or twice.
func TestFault_Late(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, w)
			s := b.sources()
			for range 5 {
				s[0].next()
				b.want(s[0], "next")
				done := b.asleep(s[0])
				b.sch.Post(b.scq.Handle()) // of a completion that was polled
				b.sch.Post(b.scq.Handle())
				time.Sleep(time.Millisecond)
				s[0].next()
				if got := <-done; got != "next" {
					t.Errorf("got %q", got)
				}
			}
			if st := b.cq.Stats(); st.Rescued != 0 {
				t.Errorf("%+v: a late event is no lost one", st)
			}
		})
	}
}

// TestC191_FaultPollError: the descriptor reports an error without data, and the provider
// says nothing: old kernels do so when a device goes (P46, C-191).
func TestC191_FaultPollError(t *testing.T) {
	for _, w := range ways {
		if w.poll || !w.descriptor {
			continue // a program's own poll sees POLLERR itself
		}
		for i, s := range newBench(t, w).sources() {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, w)
				s := b.sources()[i]
				done := make(chan error, 1)
				go func() {
					// Behind the last completions, which the library makes.
					for {
						if _, err := s.event(b.limit()); err != nil {
							done <- err
							return
						}
					}
				}()
				time.Sleep(2 * time.Millisecond)
				s.failed()
				if err := <-done; !errors.Is(err, driver.ErrDeviceGone) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

// TestC250_FaultCloseWhileWaiting: Close ends every wait, whatever the device did before.
func TestC250_FaultCloseWhileWaiting(t *testing.T) {
	for _, w := range ways {
		if w.poll {
			continue
		}
		for _, name := range []string{"CQ", "CompChannel", "CM"} {
			t.Run(name+"/"+w.name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, w)
				for _, s := range b.sources() {
					if s.name != name {
						continue
					}
					s.glitch()
					done := make(chan error, 1)
					go func() {
						_, err := s.event(b.limit())
						done <- err
					}()
					time.Sleep(2 * time.Millisecond)
					switch name {
					case "CQ":
						b.ok(b.cq.Close())
					case "CompChannel":
						b.ok(b.ch.Close())
					case "CM":
						b.ok(b.cmc.Close())
					}
					if err := <-done; !errors.Is(err, net.ErrClosed) {
						t.Errorf("got %v", err)
					}
				}
			})
		}
	}
}

// TestP16_EveryEventIsFetched: in every way of waiting, what makes the descriptor readable
// is taken by the call that fetches events, each once, and by nothing else: a provider
// counts them, and arms by the count.
func TestP16_EveryEventIsFetched(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, w)
			s := b.sources()
			for i := range 100 {
				done := b.begin(s[0], i%2 == 0)
				s[0].next()
				if got := <-done; got != "next" {
					t.Fatalf("got %q", got)
				}
				b.ok(b.qp.PostRecv(verbs.RecvWR{ID: 1}))
				if n := b.sch.Queued(); n > 1 {
					t.Fatalf("%d events wait, and nobody fetches them", n)
				}
			}
			for {
				_, ok, err := b.ch.TryEvent()
				b.ok(err)
				if !ok {
					break
				}
			}
			fired, fetched := b.scq.Events()
			if fired == 0 || fetched != fired {
				t.Errorf("%d events were queued, %d fetched", fired, fetched)
			}
			if n := b.p.Count("next event"); n < fired {
				t.Errorf("%d events, and %d calls that fetch", fired, n)
			}
			fd, err := b.ch.FD()
			b.ok(err)
			fds := []unix.PollFD{{Fd: int32(fd), Events: unix.PollIn}}
			if n, err := unix.Poll(fds, 0); n != 0 || err != nil {
				t.Errorf("readable with nothing to fetch: %d, %v", n, err)
			}
		})
	}
}
