package verbs

import (
	"errors"
	"flag"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/internal/model"
)

// The protocol by which a wait loses no wake-up (arm, look again, sleep, fetch, acknowledge,
// close) is explored over all schedules of small programs. What runs is the code of this
// package: a thread stops before each call of the provider and before it takes the channel's
// lock, and the explorer decides who goes on, and when the device completes a request.
//
//	go test ./verbs -run Model -v                   # with the numbers of states
//	go test ./verbs -run Model -model.full -v       # larger ones, some minutes
//	go test ./verbs -run 'Model/NAME' -model.schedule STEP,STEP,... -v   # one schedule again

var (
	modelFull     = flag.Bool("model.full", false, "explore larger programs")
	modelSchedule = flag.String("model.schedule", "", "run one schedule of the models that run")
)

// counts gives how many completions each of two queues gets: two each, or fewer where
// that would take long.
func counts(full ...int) []int {
	if *modelFull {
		return []int{2, 2}
	}
	if raceEnabled || testing.Short() {
		return []int{1, 1}
	}
	return full
}

// each has a thread wait for each queue.
func each(w *world) {
	for q, name := range []string{"a", "b"} {
		w.waits(name, q, w.cfg.completions[q])
	}
}

// models are the programs that must hold.
var models = map[string]func() setup{
	"Wait": func() setup {
		return setup{completions: counts(2, 2), alike: true, threads: each}
	},
	"WaitFine": func() setup { // what is between a call of the provider and its answer, too
		return setup{completions: []int{2, 0}, threads: func(w *world) { w.waits("a", 0, 2); w.waits("b", 1, 1) }, fine: true, partly: true}
	},
	"WaitGlitch": func() setup {
		return setup{completions: counts(1, 1), alike: true, threads: each, glitches: 1}
	},
	"WaitCloseChannel": func() setup {
		return setup{completions: counts(1, 1), alike: true, threads: func(w *world) { each(w); w.closes(-1) }}
	},
	"WaitCloseQueue": func() setup {
		return setup{completions: counts(1, 1), threads: func(w *world) { each(w); w.closes(0) }}
	},
	"WaitTwoOnOne": func() setup { // two goroutines wait for one queue
		return setup{completions: []int{2}, shared: true, threads: func(w *world) { w.waits("a", 0, 1); w.waits("b", 0, 1) }}
	},
	"WaitWake": func() setup { // one waits for Wake only
		return setup{completions: []int{0}, fine: true, threads: func(w *world) { w.waitsOnce("a", 0); w.wakes(0) }, partly: true}
	},
	"WaitWakeBehind": func() setup { // and another may sleep for both
		return setup{completions: []int{0, 1}, threads: func(w *world) { w.waitsOnce("a", 0); w.waits("b", 1, 1); w.wakes(0) }, partly: true}
	},
	"Loop": func() setup {
		return setup{completions: counts(2, 2), threads: func(w *world) { w.loops(habits{}) }, glitches: 1}
	},
	"LoopLate": func() setup { // completions come before the first arm
		return setup{completions: []int{2, 2}, threads: func(w *world) { w.loops(habits{event: true}) }, before: 1}
	},
	"LoopEvent": func() setup {
		return setup{completions: counts(2, 2), threads: func(w *world) { w.loops(habits{event: true}) }}
	},
	"LoopCloseChannel": func() setup {
		return setup{completions: counts(2, 2), threads: func(w *world) { w.loops(habits{event: true}); w.closes(-1) }}
	},
	"Consumer": func() setup { // what package event does
		return setup{completions: counts(2, 2), threads: func(w *world) { w.consumes(habits{}) }, glitches: 1}
	},
	"ConsumerCloseChannel": func() setup {
		return setup{completions: counts(1, 1), fine: true, threads: func(w *world) { w.consumes(habits{}); w.closes(-1) }}
	},
	"ConsumerCloseQueue": func() setup {
		return setup{completions: counts(1, 1), fine: true, threads: func(w *world) { w.consumes(habits{}); w.closes(0) }}
	},
	"LoopFine": func() setup {
		return setup{completions: counts(1, 1), threads: func(w *world) { w.loops(habits{}) }, fine: true}
	},
	"LoopCloseQueue": func() setup {
		return setup{completions: counts(1, 1), fine: true, threads: func(w *world) { w.loops(habits{event: true}); w.closes(0) }}
	},
}

// TestC239_ModelNothingIsLost: no wake-up is lost, every completion comes once and in
// order, all that was fetched is acknowledged when a queue ends, whoever waits is woken by
// Close, and nothing comes after it.
func TestC239_ModelNothingIsLost(t *testing.T) {
	t.Parallel()
	for name, m := range models {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := m()
			c.fine = c.fine && !raceEnabled || *modelFull // the race detector makes each step ten times as long
			p := c.program(name)
			if *modelSchedule != "" {
				fail := model.Replay(t, p, strings.Split(*modelSchedule, ","), func(step, state string) { t.Logf("%-10s %s", step, state) })
				if fail != nil {
					t.Fatal(fail)
				}
				return
			}
			res, fail := model.Explore(t, p)
			t.Log(res)
			if fail != nil {
				t.Fatalf("%v\nagain: go test ./verbs -run 'Model/^%s$' -model.schedule %s -v", fail.Err, name, strings.Join(fail.Schedule, ","))
			}
			if res.States < 30 {
				t.Errorf("%d states: nothing was explored", res.States)
			}
		})
	}
}

// TestModel_Reduced: the reduction leaves out nothing that ends otherwise.
func TestModel_Reduced(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Wait", "Loop"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ends [2]map[string]bool
			for i, whole := range []bool{false, true} {
				ends[i] = map[string]bool{}
				c := models[name]()
				c.completions, c.whole, c.glitches, c.fine = []int{1, 1}, whole, 0, true
				c.ended = func(w *world) { ends[i][w.outcome()] = true }
				res, fail := model.Explore(t, c.program(name))
				t.Logf("whole %v: %v, %d ends", whole, res, len(ends[i]))
				if fail != nil {
					t.Fatal(fail)
				}
			}
			for end := range ends[1] {
				if !ends[0][end] {
					t.Errorf("the reduction never ends with %s", end)
				}
			}
		})
	}
}

// variants are programs with a fault, which must be found.
var variants = map[string]struct {
	setup
	want string // in the error
}{
	// The library's wait with a fault in it.
	"WaitNoSecondLook": {setup{completions: []int{1, 1}, threads: each, lie: func(w *world, op string, q int) {
		if op == "arm" {
			w.scqs[q].Deafen(1)
		}
	}}, "lost wake-up"},
	"WaitSecondLookAtOneQueue": {setup{completions: []int{1, 1}, threads: each, lie: func(w *world, op string, q int) {
		if op == "arm" && q == 1 {
			w.scqs[q].Deafen(1)
		}
	}}, "lost wake-up: a thread sleeps, and queue 1"},
	"WaitForgottenAck": {setup{completions: []int{1, 1}, threads: each, lie: func(w *world, op string, q int) {
		if op == "next event" {
			w.sch.ForgetAcks(1)
		}
	}}, "events fetched and 0 acknowledged"},
	"WaitLostEvent": {setup{completions: []int{1, 1}, threads: each, lie: func(w *world, op string, q int) {
		if op == "arm" && q == 0 {
			w.scqs[q].Swallow(1)
		}
	}}, "lost wake-up: a thread sleeps, and queue 0"},
	"WaitSecondConsumer": {setup{completions: []int{1, 1}, threads: func(w *world) { each(w); w.steals(0) }}, "0 of 1 completions of queue 0"},
	// A program's own loop with a fault in it.
	"LoopNoSecondLook":         {setup{completions: []int{1, 1}, threads: func(w *world) { w.loops(habits{deaf: []bool{true, true}}) }}, "lost wake-up"},
	"LoopSecondLookAtOneQueue": {setup{completions: []int{1, 1}, threads: func(w *world) { w.loops(habits{deaf: []bool{true, false}}) }}, "lost wake-up: the loop sleeps, and queue 0"},
	"ConsumerNoSecondLook":     {setup{completions: []int{1, 1}, threads: func(w *world) { w.consumes(habits{deaf: []bool{true, true}}) }}, "lost wake-up: the loop sleeps"},
	"ConsumerOneEventPerEdge":  {setup{completions: []int{1, 1}, threads: func(w *world) { w.consumes(habits{one: true}) }}, "lost wake-up: the loop sleeps"},
	"LoopOneEventPerEdge":      {setup{completions: []int{1, 1}, threads: func(w *world) { w.loops(habits{one: true}) }}, "lost wake-up: the loop sleeps"},
	"LoopNeverArmed":           {setup{completions: []int{1, 1}, threads: func(w *world) { w.loops(habits{event: true, unasked: true}) }}, "lost wake-up"},
	"LoopForgottenAck": {setup{completions: []int{1, 1}, threads: func(w *world) { w.loops(habits{}) }, lie: func(w *world, op string, q int) {
		if op == "next event" {
			w.sch.ForgetAcks(1)
		}
	}}, "acknowledged"},
	"LoopSecondConsumer": {setup{completions: []int{1, 1}, threads: func(w *world) { w.loops(habits{}); w.steals(0) }}, "0 of 1 completions of queue 0"},
	// What a Close that does not do its work would leave.
	"CloseWithoutWaking": {setup{completions: []int{0, 1}, threads: func(w *world) {
		w.waits("a", 0, 1)
		w.s.Go("close", w.ready(w.cqs[0]), func() {
			w.cqs[0].mu.Lock()
			w.cqs[0].shut = true
			w.cqs[0].mu.Unlock()
		})
	}}, "which is closed"},
}

// TestModel_FaultsAreFound: the properties above are worth something, as each fault breaks
// one. The schedule that shows it does so again.
func TestModel_FaultsAreFound(t *testing.T) {
	t.Parallel()
	for name, v := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := v.program(name)
			res, fail := model.Explore(t, p)
			if fail == nil {
				t.Fatalf("not found in %v", res)
			}
			t.Logf("found after %v: %v", res, fail)
			if !strings.Contains(fail.Error(), v.want) {
				t.Errorf("found %q, want %q", fail.Err, v.want)
			}
			again := model.Replay(t, p, fail.Schedule, nil)
			if again == nil || again.Err.Error() != fail.Err.Error() {
				t.Errorf("the schedule gives %v the second time", again)
			}
		})
	}
}

// waitsOnce starts a thread whose one Wait may end with a completion, or by Wake.
func (w *world) waitsOnce(name string, q int) {
	i := len(w.errs)
	w.errs = append(w.errs, nil)
	w.s.Go(name, w.ready(w.cqs[q]), func() {
		var dst [1]WC
		n, err := w.cqs[q].Wait(w.ctx, dst[:])
		if err != nil {
			w.errs[i] = err
			return
		}
		if n == 0 && !w.woke {
			w.wrong = append(w.wrong, errors.New("a Wait ended with nothing, and nobody called Wake"))
		}
	})
}

// wakes starts a thread that calls Wake.
func (w *world) wakes(q int) {
	w.errs = append(w.errs, nil)
	w.s.Go("wake", w.ready(), func() {
		w.woke = true
		w.cqs[q].Wake()
	})
}
