package event_test

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
)

// session is a client of the example's server, in the server's loop: it connects, sends
// messages one after the other, each when the echo of the last has come, and disconnects.
type session struct {
	recorder
	t     *testing.T
	l     *event.Loop
	id    *cm.ID
	side  *side
	peer  *peer
	left  int
	ended bool
	kick  func() // sends the next message
}

func (c *session) onCM(ev cm.Event) {
	c.add("%v", ev.Type)
	t := c.t
	switch ev.Type {
	case cm.AddrResolved:
		must(t, c.id.ResolveRoute(time.Second))
	case cm.RouteResolved:
		must(t, c.side.open(c.id.Device(), c.onWC))
		var err error
		c.peer, err = c.side.connection(c.id)
		must(t, err)
		must(t, c.id.Connect(nil))
	case cm.Established:
		c.kick()
	case cm.Disconnected:
		c.ended = true
	}
}

func (c *session) send() {
	c.left--
	must(c.t, c.id.QP().PostSend(verbs.Send(depth-1, c.peer.slot(depth-1, 100), ib.Signaled)))
}

func (c *session) onWC(wc verbs.WC) {
	if wc.Status == ib.StatusWRFlush {
		return
	}
	must(c.t, wc.Err())
	if !wc.Opcode.IsRecv() {
		return // its order among the echoes is nobody's promise
	}
	c.add("echo of %d", wc.ByteLen)
	must(c.t, wc.QP.PostRecv(verbs.Recv(wc.ID, c.peer.slot(wc.ID, size))))
	if c.left > 0 {
		c.kick()
	} else {
		must(c.t, c.id.Disconnect())
	}
}

// TestC246_C248_Session: one session over the embedded device gives the same on all backends,
// by Run, by Turn, and nested in a foreign loop; beside a socket, a timer and functions that
// take part in it.
func TestC246_C248_Session(t *testing.T) {
	t.Parallel()
	const messages = 1000
	drives := map[string]func(t *testing.T, l *event.Loop, over func() bool){
		"turn": func(t *testing.T, l *event.Loop, over func() bool) { until(t, l, "the session", over) },
		"run": func(t *testing.T, l *event.Loop, over func() bool) {
			var watch *event.Timer
			watch = l.After(0, func() {
				if over() {
					l.Stop()
				}
				watch.Reset(time.Millisecond)
			})
			must(t, l.Run(t.Context()))
			watch.Stop()
		},
		"nested": func(t *testing.T, l *event.Loop, over func() bool) {
			outer := newLoop(t, event.Config{})
			fd := get[int](t)(l.FD())
			w := get[*event.Watch](t)(outer.File(fd, event.Readable, func(event.Mask) {
				_, err := l.Turn(0)
				must(t, err)
			}))
			until(t, outer, "the session", over)
			must(t, w.Close())
		},
	}
	each(t, func(t *testing.T, b event.Backend) {
		for name, drive := range drives {
			t.Run(name, func(t *testing.T) {
				f := rdmatest.NewFabric(t, 0)
				l := newLoop(t, event.Config{Backend: b})
				s, err := serve(l, f.Host(addr(t, "10.0.0.2")), netip.MustParseAddrPort("10.0.0.2:7471"))
				must(t, err)
				defer s.close()
				c := &session{t: t, l: l, left: messages}
				c.side, err = newSide(l, f.Host(addr(t, "10.0.0.1")), c.onCM)
				must(t, err)
				defer c.side.close()
				// A message goes through a socket and a function before it is sent.
				a, p := socketpair(t)
				defer syscall.Close(a)
				defer syscall.Close(p)
				c.kick = func() { l.Do(func() { syscall.Write(p, []byte{1}) }) }
				get[*event.Watch](t)(l.File(a, event.Readable, func(event.Mask) {
					var one [1]byte
					if n, err := syscall.Read(a, one[:]); n != 1 || err != nil {
						t.Errorf("read: %d, %v", n, err)
					}
					c.send()
				}))
				ticks := 0
				var tick *event.Timer
				tick = l.After(0, func() { ticks++; tick.Reset(time.Millisecond) })
				defer tick.Stop()
				c.id, err = c.side.ch.NewID(ib.PortSpaceTCP)
				must(t, err)
				defer c.id.Close()
				must(t, c.id.ResolveAddr(netip.AddrPort{}, s.ln.LocalAddr(), time.Second))
				drive(t, l, func() bool { return c.ended })
				want := []string{fmt.Sprint(cm.AddrResolved), fmt.Sprint(cm.RouteResolved), fmt.Sprint(cm.Established)}
				want = append(want, slices.Repeat([]string{"echo of 100"}, messages)...)
				want = append(want, fmt.Sprint(cm.Disconnected))
				if i := differ(c.log, want); i >= 0 {
					t.Errorf("call %d is %q, want %q", i, at(c.log, i), at(want, i))
				}
				if st := l.Stats(); st.Rescued != 0 || ticks == 0 {
					t.Errorf("%+v, %d ticks", st, ticks)
				}
			})
		}
	})
}

// TestEmbeddedStream: messages 64 deep between two loops that run; none is lost, and the
// device's removal ends the watches.
func TestEmbeddedStream(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		const messages, deep = 3000, 64
		a, peer := rdmatest.JoinedPair(t, verbs.QPConfig{MaxSendWR: deep, MaxRecvWR: 2 * deep})
		mr, smr := peer.UserData().(*verbs.MR), a.UserData().(*verbs.MR)
		recv, send := newLoop(t, event.Config{Backend: b}), newLoop(t, event.Config{Backend: b})
		got, done, sent := 0, 0, 0
		all := make(chan bool)
		get[*event.Watch](t)(recv.CQ(peer.RecvCQ(), func(wc verbs.WC) {
			if wc.Status != ib.StatusSuccess {
				return
			}
			must(t, peer.PostRecv(verbs.Recv(wc.ID, mr.SGE(int(wc.ID)*rdmatest.PairRecvSize, rdmatest.PairRecvSize))))
			if got++; got == messages {
				close(all)
			}
		}))
		post := func() {
			for sent < messages && sent-done < deep {
				must(t, a.PostSend(verbs.Send(1, smr.SGE(0, 64), ib.Signaled)))
				sent++
			}
		}
		get[*event.Watch](t)(send.CQ(a.SendCQ(), func(wc verbs.WC) {
			if !wc.Opcode.IsRecv() {
				must(t, wc.Err())
				done++
				post()
			}
		}))
		stop := running(t, recv)
		send.Do(post)
		until(t, send, "all sends", func() bool { return done == messages })
		arrive(t, all, "all messages")
		stop()
		for _, l := range []*event.Loop{recv, send} {
			if s := l.Stats(); s.Rescued != 0 || s.Wakeups > messages/8 {
				t.Logf("%+v", s) // wake-ups are a benchmark's business
				if s.Rescued != 0 {
					t.Error("rescued")
				}
			}
		}
	})
}
