package event_test

import (
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestAllocations: a turn, a sleep, and each thing that is delivered allocate nothing.
func TestAllocations(t *testing.T) {
	for _, b := range backends {
		for _, spin := range []event.Spin{{}, {Max: 10 * time.Microsecond, Adaptive: true}} {
			name := b.String()
			if spin.Adaptive {
				name += "/adaptive"
			}
			t.Run(name, func(t *testing.T) { allocations(t, event.Config{Backend: b, Spin: spin}) })
		}
	}
}

func allocations(t *testing.T, cfg event.Config) {
	r := newRig(t, &scripted.Config{Unchecked: true, Descriptors: true})
	l := newLoop(t, cfg)
	var zero [4]*line
	done := 0
	for i := range zero {
		zero[i] = r.line(nil)
		get[*event.Watch](t)(l.CQ(zero[i].cq, func(wc verbs.WC) { done++ }))
	}
	file := eventfd(t)
	get[*event.Watch](t)(l.File(file, event.Readable, func(event.Mask) { done++; drain(t, file) }))
	timer := l.After(time.Hour, func() { done++ })
	fn := func() { done++ }
	wake := make(chan int)
	go func() {
		for range wake {
			signal(t, file)
		}
	}()
	defer close(wake)

	sge := r.mr.SGE(0, 64)
	give := func(n *line, k int) {
		for range k {
			if n.qp.PostRecv(verbs.Recv(1, sge)) != nil {
				t.Error("post")
			}
		}
		n.sqp.CompleteRecv(k, scripted.Received(8), false)
	}
	until := func(n int) {
		for done = 0; done < n; {
			if _, err := l.Turn(-1); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The scripted provider allocates itself, as its level is a Go channel that is made anew
	// for each event. So much do the bare calls allocate.
	var plain [3]*line
	var arrived [3]*verbs.CompChannel
	for i := range plain {
		plain[i] = r.line(nil)
		arrived[i] = get[*verbs.CompChannel](t)(plain[i].cq.Channel())
		get[int](t)(arrived[i].FD()) // the level costs more with a descriptor
	}
	one := make([]verbs.WC, 32)
	take := func(i, k int) {
		if ready, err := plain[i].cq.Arm(ib.NotifyAny); ready || err != nil {
			t.Error(ready, err)
		}
		give(plain[i], k)
		cq, ok, err := arrived[i].TryEvent()
		if n, perr := cq.Poll(one); n != k || !ok || err != nil || perr != nil {
			t.Error(n, ok, err, perr)
		}
	}
	bare := map[string]func(){
		"completions": func() { take(0, 20) },
		"many queues": func() { take(0, 1); take(1, 1); take(2, 1) },
	}
	for name, f := range map[string]func(){
		"nothing": func() {
			if n, err := l.Turn(0); n != 0 || err != nil {
				t.Error(n, err)
			}
		},
		"completions":  func() { give(zero[0], 20); until(20) },
		"many queues":  func() { give(zero[0], 1); give(zero[1], 1); give(zero[2], 1); until(3) },
		"file":         func() { signal(t, file); until(1) },
		"sleep":        func() { wake <- 1; until(1) },
		"function":     func() { l.Do(fn); until(1) },
		"timer":        func() { timer.Reset(time.Microsecond); until(1) },
		"short sleep":  func() { l.Turn(time.Microsecond) },
		"timer is set": func() { timer.Reset(time.Hour); timer.Stop() },
	} {
		for range 100 {
			f() // slices grow
		}
		n := testing.AllocsPerRun(200, f)
		if g := bare[name]; g != nil {
			n -= testing.AllocsPerRun(200, g)
		}
		if n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if s := l.Stats(); s.Rescued != 0 {
		t.Errorf("rescued %d", s.Rescued)
	}
}

// TestManyIdle: of many queues that are armed and idle only those that have something are
// polled, armed or fetched from, with epoll.
func TestManyIdle(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		idle := 1000
		if b == event.Select {
			idle = 100 // each channel is a descriptor
		}
		r := newRig(t, &scripted.Config{Descriptors: true})
		l := newLoop(t, event.Config{Backend: b, Recheck: -1})
		shared := get[*verbs.CompChannel](t)(r.dev.CreateCompChannel())
		r.closeLast(shared)
		for i := range idle {
			ch := shared
			if i < idle/2 {
				ch = nil
			}
			cq := get[*verbs.CQ](t)(r.dev.CreateCQ(1, &verbs.CQConfig{Channel: ch}))
			r.closeLast(cq)
			get[*event.Watch](t)(l.CQ(cq, func(verbs.WC) { t.Error("called") }))
		}
		for _, ch := range []*verbs.CompChannel{nil, shared} {
			n := r.line(ch)
			_, got := n.watch(l)
			until(t, l, "rest", func() bool {
				k, err := l.Turn(0)
				must(t, err)
				return k == 0
			})
			calls := r.p.Count("")
			const rounds = 20
			for i := range rounds {
				n.give(1)
				until(t, l, "a completion", func() bool { return len(*got) == i+1 })
			}
			turn(t, l, 0)
			// Per round: post, arm, two fetches of events, polls.
			if k := r.p.Count("") - calls; k > 10*rounds {
				t.Errorf("%d calls of the provider for %d completions", k, rounds)
			}
		}
	})
}

// TestC259_Spin: what spinning finds needs no event; the loop sleeps when nothing comes, sees
// what others have for it, and works on one processor.
func TestC259_Spin(t *testing.T) {
	t.Parallel()
	for name, spin := range map[string]event.Spin{
		"fixed": {Max: 10 * time.Millisecond}, "adaptive": {Max: 10 * time.Millisecond, Adaptive: true},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b event.Backend) {
				r := newRig(t, nil)
				l := newLoop(t, event.Config{Backend: b, Recheck: -1, Spin: spin})
				n := r.line(nil)
				got := 0
				next := make(chan bool, 1)
				get[*event.Watch](t)(l.CQ(n.cq, func(wc verbs.WC) {
					got++
					next <- true
				}))
				// A peer that answers at once, in another goroutine.
				const rounds = 200
				peer := make(chan bool)
				go func() {
					defer close(peer)
					for range rounds {
						n.give(1)
						<-next
					}
				}()
				for got < rounds {
					_, err := l.Turn(10 * time.Second)
					must(t, err)
				}
				<-peer
				s := l.Stats()
				fired, _ := n.scq.Events()
				if s.SpinHits == 0 || fired >= rounds {
					t.Errorf("%d of %d spins hit, %d events for %d completions", s.SpinHits, s.Spins, fired, rounds)
				}
				// While it spins it serves others.
				file := eventfd(t)
				get[*event.Watch](t)(l.File(file, event.Readable, func(event.Mask) { drain(t, file) }))
				n.give(1)
				until(t, l, "a completion", func() bool { return got == rounds+1 })
				<-next
				signal(t, file)
				turns := 0
				until(t, l, "the file", func() bool { turns++; return !readable(t, file) })
				ran := false
				l.Do(func() { ran = true })
				until(t, l, "the function", func() bool { return ran })
				// And then it sleeps, armed.
				if k, err := l.Turn(30 * time.Millisecond); k != 0 || err != nil {
					t.Error(k, err)
				}
				if !n.scq.Armed() {
					t.Error("not armed after a spin in vain")
				}
				n.give(1)
				until(t, l, "a completion", func() bool { return got == rounds+2 })
				<-next
			})
		})
	}
}

// TestSpinLearns: a source that never answers soon is not spun for for ever.
func TestSpinLearns(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	l := newLoop(t, event.Config{Recheck: -1, Spin: event.Spin{Max: 50 * time.Microsecond, Adaptive: true}})
	n := r.line(nil)
	_, got := n.watch(l)
	const rounds = 60
	for i := range rounds {
		time.AfterFunc(2*time.Millisecond, func() { n.give(1) })
		until(t, l, "a completion", func() bool { return len(*got) == i+1 })
	}
	if s := l.Stats(); s.Spins > rounds/3 {
		t.Errorf("%d spins in %d waits, %d hit", s.Spins, rounds, s.SpinHits)
	}
}
