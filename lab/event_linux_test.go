package lab_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibverbs"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
)

// soakCycles is how often sleepers are woken by TestGuestC239_EventSoak; docs/lab.md has the
// command for ten million.
var soakCycles = flag.Int("soak", 2400, "cycles of the soak")

// eventBackends are what an event.Loop waits in.
var eventBackends = []event.Backend{event.Epoll, event.Poll, event.Select}

// TestGuestC239_EventSoak: on a kernel's device no wake-up is lost, in whichever way a program
// waits.
func TestGuestC239_EventSoak(t *testing.T) {
	inGuest(t)
	p, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	rdmatest.Soak(t, p, &rdmatest.SoakOptions{Cycles: *soakCycles})
}

// TestGuestC246_C248_EventSession: the same session over a kernel's device, with goroutines, with
// event.Loop on each multiplexer, driven by Run and by Turn, and nested in another loop.
func TestGuestC246_C248_EventSession(t *testing.T) {
	guest := inGuest(t)
	p, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	eventSessions(t, p, netip.MustParseAddr(guest.v4))
}

func eventSessions(t *testing.T, p verbs.Provider, addr netip.Addr) {
	const messages = 100
	want := []string{"address", "route", "established"}
	for i := range messages {
		want = append(want, fmt.Sprintf("echo %d", i))
	}
	want = append(want, "disconnected")
	check := func(t *testing.T, drive func(s *eventSession)) {
		s := newEventSession(t, p, addr, messages)
		drive(s)
		if !slices.Equal(s.log, want) {
			t.Errorf("%d entries, want %d: %q", len(s.log), len(want), s.log)
		}
		s.close()
	}
	t.Run("Goroutines", func(t *testing.T) {
		check(t, func(s *eventSession) { s.byGoroutines(time.Minute) })
	})
	// Each gives how often it slept.
	type drive func(s *eventSession, l *event.Loop) uint64
	loops := []struct {
		name  string
		drive drive
	}{
		{"Run", func(s *eventSession, l *event.Loop) uint64 {
			s.end = l.Stop
			late := l.After(time.Minute, l.Stop)
			defer late.Stop()
			s.ok(l.Run(t.Context()))
			return l.Stats().Sleeps
		}},
		{"Turn", func(s *eventSession, l *event.Loop) uint64 {
			for late := time.Now().Add(time.Minute); !s.over && time.Now().Before(late); {
				_, err := l.Turn(time.Second)
				s.ok(err)
			}
			return l.Stats().Sleeps
		}},
		{"Nested", func(s *eventSession, l *event.Loop) uint64 {
			outer, err := event.New(nil)
			s.ok(err)
			defer outer.Close()
			fd, err := l.FD()
			s.ok(err)
			w, err := outer.File(fd, event.Readable, func(event.Mask) {
				_, err := l.Turn(0)
				s.ok(err)
			})
			s.ok(err)
			defer w.Close()
			s.end = outer.Stop
			late := outer.After(time.Minute, outer.Stop)
			defer late.Stop()
			s.ok(outer.Run(t.Context()))
			return outer.Stats().Sleeps
		}},
	}
	for _, b := range eventBackends {
		for _, way := range loops {
			t.Run(fmt.Sprint(b, "/", way.name), func(t *testing.T) {
				check(t, func(s *eventSession) {
					l, err := event.New(&event.Config{Backend: b})
					s.ok(err)
					defer l.Close()
					s.watch(l)
					sleeps := way.drive(s, l)
					if st := l.Stats(); st.Rescued != 0 || sleeps == 0 {
						t.Errorf("%d sleeps, %+v", sleeps, st)
					}
				})
			})
		}
	}
}

// TestGuestC247_EventQueues: of many queues, with channels of their own and on one channel, the
// loop serves the one that has something, once; one whose watch was closed keeps it for the
// next watch; and idle ones wake nobody.
func TestGuestC247_EventQueues(t *testing.T) {
	inGuest(t)
	p, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range eventBackends {
		t.Run(b.String(), func(t *testing.T) { eventQueues(t, p, b) })
	}
}

func eventQueues(t *testing.T, p verbs.Provider, b event.Backend) {
	const queues, messages, seed = 24, 200, 11
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dev, err := verbs.Open(p, "")
	ok(err)
	ch, err := dev.CreateCompChannel()
	ok(err)
	defer ch.Close()
	l, err := event.New(&event.Config{Backend: b})
	ok(err)
	defer l.Close()
	got := make([]int, queues)
	var lines [queues]*eventLine
	var watches [queues]*event.Watch
	watch := func(i int) {
		watches[i], err = l.CQ(lines[i].cq, func(wc verbs.WC) {
			ok(wc.Err())
			got[i]++
			ok(lines[i].recv())
		})
		ok(err)
	}
	for i := range lines {
		shared := ch
		if i%2 == 0 {
			shared = nil
		}
		lines[i] = newEventLine(t, dev, shared)
		defer lines[i].close()
		watch(i)
	}
	until := func(what string, cond func() bool) {
		t.Helper()
		for late := time.Now().Add(time.Minute); !cond(); {
			_, err := l.Turn(time.Second)
			ok(err)
			if time.Now().After(late) {
				t.Fatalf("does not come: %s; %v", what, got)
			}
		}
	}
	want := make([]int, queues)
	r := rand.New(rand.NewPCG(seed, seed))
	for range messages {
		i := r.IntN(queues)
		want[i]++
		ok(lines[i].send())
		until(fmt.Sprintf("message %d of queue %d", want[i], i), func() bool { return got[i] >= want[i] })
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: messages %v, want %v", seed, got, want)
		}
	}
	// Two neighbours, of either kind, are not watched for a while.
	for i := range 2 {
		ok(watches[i].Close())
		ok(lines[i].send())
	}
	want[2]++
	ok(lines[2].send())
	until("a message of another queue", func() bool { return got[2] == want[2] })
	if !slices.Equal(got, want) {
		t.Errorf("messages %v, want %v", got, want)
	}
	for i := range 2 {
		watch(i)
		want[i]++
	}
	until("what came meanwhile", func() bool { return slices.Equal(got, want) })
	// Nothing happens: it sleeps, but for a look each second at most.
	before := l.Stats()
	n, err := l.Turn(3 * time.Second)
	if after := l.Stats(); n != 0 || err != nil || after.Wakeups > before.Wakeups+6 || after.Sleeps > before.Sleeps+6 {
		t.Errorf("an idle turn: %d calls, %v; %+v and then %+v", n, err, before, after)
	}
	if s := l.Stats(); s.Rescued != 0 || s.Sleeps == 0 {
		t.Errorf("%+v", s)
	}
}

// eventLine is a queue pair that is joined to one whose receives complete in cq.
type eventLine struct {
	pd       *verbs.PD
	cq, scq  *verbs.CQ
	mr       *verbs.MR
	from, to *verbs.QP
}

func newEventLine(t *testing.T, dev *verbs.Device, ch *verbs.CompChannel) *eventLine {
	t.Helper()
	n := &eventLine{}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	n.pd, err = dev.AllocPD()
	ok(err)
	n.mr, err = n.pd.Alloc(4096, ib.LocalWrite)
	ok(err)
	n.cq, err = dev.CreateCQ(8, &verbs.CQConfig{Channel: ch})
	ok(err)
	n.scq, err = dev.CreateCQ(8, nil)
	ok(err)
	n.from, err = n.pd.CreateQP(verbs.QPConfig{SendCQ: n.scq, MaxSendWR: 4, MaxRecvWR: 1})
	ok(err)
	n.to, err = n.pd.CreateQP(verbs.QPConfig{SendCQ: n.scq, RecvCQ: n.cq, MaxSendWR: 1, MaxRecvWR: 4})
	ok(err)
	a, err := n.from.Endpoint(1, -1)
	ok(err)
	b, err := n.to.Endpoint(1, -1)
	ok(err)
	for range 4 {
		ok(n.recv())
	}
	ok(n.from.PostRecv(verbs.Recv(1, n.mr.SGE(0, 64)))) // Join wants one; nobody sends there
	ok(n.from.Join(b, &verbs.PathOptions{Access: ib.LocalWrite}))
	ok(n.to.Join(a, &verbs.PathOptions{Access: ib.LocalWrite}))
	return n
}

func (n *eventLine) recv() error { return n.to.PostRecv(verbs.Recv(1, n.mr.SGE(0, 64))) }

// send sends a message. The one before has been received, so its completion is there soon.
func (n *eventLine) send() error {
	var dst [4]verbs.WC
	if _, err := n.scq.Poll(dst[:]); err != nil {
		return err
	}
	return n.from.PostSend(verbs.Send(2, n.mr.SGE(64, 64), 0))
}

func (n *eventLine) close() {
	for _, c := range []interface{ Close() error }{n.from, n.to, n.cq, n.scq, n.mr, n.pd} {
		_ = c.Close()
	}
}

// locked has f called by one goroutine at a time.
func locked[T any](mu *sync.Mutex, f func(T)) func(T) {
	return func(v T) {
		mu.Lock()
		defer mu.Unlock()
		f(v)
	}
}
