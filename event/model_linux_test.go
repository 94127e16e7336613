package event_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestC246_SameSequences: random operations give the same calls in the same order on all
// backends, and no completion is lost, doubled or given to who has closed.
func TestC246_SameSequences(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			var want []string
			for _, b := range backends {
				m := newModel(t, b, seed)
				m.run(400)
				if b == event.Epoll {
					want = m.log
				} else if i := differ(want, m.log); i >= 0 {
					t.Fatalf("seed %d: %v differs from epoll at call %d of %d/%d: %q, %q", seed, b, i, len(m.log), len(want), at(m.log, i), at(want, i))
				}
			}
			if len(want) < 100 {
				t.Errorf("seed %d: only %d calls", seed, len(want))
			}
		})
	}
}

// TestNothingLeaks: descriptors, goroutines, threads and objects are gone when the loop and
// its sources are closed, in whatever order.
func TestNothingLeaks(t *testing.T) {
	// Not in parallel, so that all is this test's.
	for _, b := range backends {
		for seed := range uint64(4) {
			t.Run(fmt.Sprint(b, " ", seed), func(t *testing.T) {
				rdmatest.CheckLeaks(t)
				m := newModel(t, b, seed)
				m.run(200)
				if seed < 2 {
					must(t, m.l.Close()) // before its sources
				}
			})
		}
		t.Run(fmt.Sprint(b, " running"), func(t *testing.T) {
			rdmatest.CheckLeaks(t)
			for range 4 { // poll and select hold a thread each, which Go keeps
				l := newLoop(t, event.Config{Backend: b})
				fd := eventfd(t)
				get[int](t)(l.FD())
				get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { drain(t, fd) }))
				l.After(time.Hour, func() {})
				stop := running(t, l)
				signal(t, fd)
				waitFor(t, "the handler", func() bool { return !readable(t, fd) })
				stop()
			}
		})
	}
}

func differ(a, b []string) int {
	for i := range max(len(a), len(b)) {
		if at(a, i) != at(b, i) {
			return i
		}
	}
	return -1
}

func at(log []string, i int) string {
	if i < len(log) {
		return log[i]
	}
	return "nothing"
}

// model is a loop with sources that a random sequence of operations acts on.
type model struct {
	recorder
	t      *testing.T
	rnd    *rand.Rand
	r      *rig
	cm     *cmRig
	l      *event.Loop
	shared *verbs.CompChannel
	lines  []*modelLine
	files  []*modelFile
	ids    []*scripted.CMID
	chs    []*cm.EventChannel
	timers []*event.Timer
	panics int // handler calls until one panics; 0: none does
	made   int
}

type modelLine struct {
	*line
	name string
	w    *event.Watch
	want uint64 // next id
	gone bool
}

type modelFile struct {
	fd   int
	w    *event.Watch
	name string
}

func newModel(t *testing.T, b event.Backend, seed uint64) *model {
	m := &model{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), r: newRig(t, &scripted.Config{Descriptors: seed%2 == 0}), cm: newCMRig(t, seed%2 == 0)}
	m.l = newLoop(t, event.Config{Backend: b, Batch: 3, Recheck: -1})
	m.shared = get[*verbs.CompChannel](t)(m.r.dev.CreateCompChannel())
	m.r.closeLast(m.shared)
	for range 4 {
		m.addLine()
		m.addFile()
	}
	for i := range 2 {
		ch := m.cm.channel()
		m.chs = append(m.chs, ch)
		get[*event.Watch](t)(m.l.CM(ch, func(ev cm.Event) { m.call("cm %d: %v", i, ev.Type) }))
	}
	for i := range 3 {
		_, raw := m.cm.id(m.chs[i%2])
		m.ids = append(m.ids, raw)
	}
	get[*event.Watch](t)(m.l.Async(m.r.dev.Async(), func(ev verbs.AsyncEvent) { m.call("async %v", ev.Type) }))
	return m
}

// call notes a call of a handler.
func (m *model) call(format string, args ...any) {
	m.add(format, args...)
	if m.panics > 0 {
		if m.panics--; m.panics == 0 {
			panic(errModel)
		}
	}
}

var errModel = errors.New("panic of the model")

func (m *model) addLine() {
	ch := m.shared
	if m.rnd.IntN(2) == 0 {
		ch = nil
	}
	n := &modelLine{line: m.r.line(ch), name: fmt.Sprint("queue ", m.made)}
	m.made++
	m.lines = append(m.lines, n)
	m.watchLine(n)
}

func (m *model) watchLine(n *modelLine) {
	n.w = get[*event.Watch](m.t)(m.l.CQ(n.cq, func(wc verbs.WC) {
		if wc.ID != n.want {
			m.t.Errorf("%s: completion %d, want %d", n.name, wc.ID, n.want)
		}
		n.want = wc.ID + 1
		m.call("%s: %d", n.name, wc.ID)
		if m.rnd.IntN(20) == 0 && n.w != nil { // in the middle of a batch
			m.add("close watch of %s", n.name)
			must(m.t, n.w.Close())
			n.w = nil
		}
	}))
	n.w.OnError(func(err error) {
		m.call("%s failed", n.name)
		n.w = nil
	})
}

func (m *model) addFile() {
	f := &modelFile{fd: get[int](m.t)(unix.Eventfd()), name: fmt.Sprint("file ", m.made)}
	m.made++
	m.files = append(m.files, f)
	m.t.Cleanup(func() { unix.Close(f.fd) })
	m.watchFile(f)
}

func (m *model) watchFile(f *modelFile) {
	f.w = get[*event.Watch](m.t)(m.l.File(f.fd, event.Readable, func(mask event.Mask) {
		if m.rnd.IntN(3) > 0 {
			drain(m.t, f.fd)
		}
		m.call("%s: %v", f.name, mask)
	}))
}

func (m *model) run(steps int) {
	defer func() {
		for i := range m.lines { // and at the end there is nothing left
			if n := m.lines[i]; !n.gone && n.w != nil && n.want != n.next {
				m.t.Errorf("%s: %d of %d completions", n.name, n.want, n.next)
			}
		}
	}()
	for range steps {
		m.step()
		if m.rnd.IntN(3) == 0 {
			m.turn()
		}
	}
	m.panics = 0
	for _, n := range m.lines {
		if n.w == nil && !n.gone {
			m.watchLine(n)
		}
	}
	for _, f := range m.files {
		drain(m.t, f.fd)
	}
	for quiet := 0; quiet < 5; {
		before := len(m.log)
		m.turn()
		for _, n := range m.lines {
			if n.w == nil && !n.gone {
				m.watchLine(n)
			}
		}
		if quiet++; len(m.log) > before+1 {
			quiet = 0
		}
	}
}

func (m *model) turn() {
	m.add("turn")
	p := call(func() {
		if _, err := m.l.Turn(0); err != nil {
			m.t.Error(err)
		}
	})
	if p != nil && p != errModel {
		panic(p)
	}
}

func (m *model) step() {
	n := m.lines[m.rnd.IntN(len(m.lines))]
	f := m.files[m.rnd.IntN(len(m.files))]
	switch m.rnd.IntN(20) {
	case 0, 1, 2, 3, 4:
		if k := 1 + m.rnd.IntN(7); !n.gone && n.next-n.want+uint64(k) < lineDepth {
			n.give(k)
		}
	case 5, 6:
		signal(m.t, f.fd)
	case 7:
		m.ids[m.rnd.IntN(len(m.ids))].Post(driver.CMEvent{Type: cm.EventType(100 + m.rnd.IntN(50))})
	case 8:
		m.r.ctx.PostAsync(driver.AsyncEvent{Type: 200})
	case 9:
		m.l.Do(func() { m.call("function") })
	case 10:
		i := len(m.timers)
		m.timers = append(m.timers, m.l.After(time.Duration(1+m.rnd.IntN(10))*time.Hour, func() { m.call("timer %d", i) }))
	case 11:
		event.Pass(m.l, time.Duration(1+m.rnd.IntN(3))*time.Hour)
	case 12:
		if k := len(m.timers); k > 0 {
			m.add("stop %v", m.timers[m.rnd.IntN(k)].Stop())
		}
	case 13:
		if n.w != nil {
			must(m.t, n.w.Close())
			n.w = nil
		} else if !n.gone {
			m.watchLine(n)
		}
	case 14:
		if f.w != nil {
			must(m.t, f.w.Close())
			f.w = nil
		} else {
			m.watchFile(f)
		}
	case 15:
		m.r.ctx.Channel(0).Glitch()
	case 16:
		m.r.ctx.Channel(0).Post(n.scq.Handle())
	case 17:
		if m.rnd.IntN(8) == 0 && !n.gone {
			n.gone = true
			must(m.t, n.qp.Close())
			must(m.t, n.cq.Close())
			m.addLine()
		}
	case 18:
		m.panics = 1 + m.rnd.IntN(4)
	case 19:
		m.l.Do(func() { // by a handler
			m.call("giver")
			if !n.gone {
				n.give(1)
			}
			signal(m.t, f.fd)
		})
	}
}

// TestStorm: many goroutines add, use and close sources of a loop that runs; nothing is
// lost, nothing is called after its end, and nobody hangs. For the race detector.
func TestStorm(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b, Batch: 4, Recheck: time.Millisecond, Spin: event.Spin{Max: 20 * time.Microsecond, Adaptive: true}})
		stop := running(t, l)
		shared := get[*verbs.CompChannel](t)(r.dev.CreateCompChannel())
		r.closeLast(shared)
		const rounds = 25
		var wg sync.WaitGroup
		var mu sync.Mutex // of making lines, as the rig has one list
		for g := range 3 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(g), 2))
				for range rounds {
					mu.Lock()
					ch := shared
					if rnd.IntN(2) == 0 {
						ch = nil
					}
					n := r.line(ch)
					mu.Unlock()
					var got atomic.Int64
					var over atomic.Bool
					w := get[*event.Watch](t)(l.CQ(n.cq, func(wc verbs.WC) {
						if over.Load() {
							t.Error("called after Close")
						}
						if wc.ID != uint64(got.Load()) {
							t.Errorf("completion %d after %d", wc.ID, got.Load())
						}
						got.Add(1)
					}))
					w.OnError(func(error) {})
					k := 1 + rnd.IntN(30)
					for range k {
						n.give(1)
						if rnd.IntN(4) == 0 {
							l.Do(func() {})
						}
					}
					if rnd.IntN(3) > 0 {
						waitFor(t, "all completions", func() bool { return got.Load() == int64(k) })
					}
					if rnd.IntN(4) == 0 {
						must(t, n.cq.Close())
					}
					must(t, w.Close())
					over.Store(true)
					n.qp.Close()
					n.cq.Close()
				}
			})
		}
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(9, 9))
			for range rounds * 4 {
				a, peer := socketpair(t)
				done := make(chan bool, 1)
				var w *event.Watch
				set := make(chan bool)
				w = get[*event.Watch](t)(l.File(a, event.Readable, func(m event.Mask) {
					<-set
					var one [1]byte
					if k, err := unix.Read(a, one[:]); k != 1 || err != nil {
						t.Errorf("read %d, %v", k, err)
					}
					if rnd.IntN(2) == 0 {
						must(t, w.Close())
					}
					done <- true
				}))
				close(set)
				timer := l.After(time.Duration(rnd.IntN(100))*time.Microsecond, func() {})
				_, err := unix.Write(peer, []byte("x"))
				must(t, err)
				arrive(t, done, "the byte")
				timer.Reset(time.Hour)
				timer.Stop()
				must(t, w.Close())
				must(t, errors.Join(unix.Close(a), unix.Close(peer)))
			}
		})
		wg.Wait()
		stop()
		if s := l.Stats(); s.Rescued != 0 {
			t.Errorf("rescued: %+v", s)
		}
		if n := event.Watched(l); n != 2 {
			t.Errorf("%d descriptors are left in the set", n)
		}
	})
}
