package rdmatest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// profile is what a run of the suite knows of its provider. Each entry must be needed.
type profile struct {
	mu     sync.Mutex
	accept map[string][]ib.Status
	asked  map[string]bool // points of accept
	known  map[string]string
	may    map[string]string
	here   map[string]bool // tests that belong to the run, and whether they were started
}

func newProfile(o *ConformanceOptions) *profile {
	return &profile{accept: o.Accept, known: o.Known, may: o.Unsteady, asked: map[string]bool{}, here: map[string]bool{}}
}

// excuse gives the entry of a test; nil: it has none.
func (p *profile) excuse(name string) *excuse {
	if reason, ok := p.known[name]; ok {
		return &excuse{reason: reason}
	}
	if reason, ok := p.may[name]; ok {
		return &excuse{reason: reason, may: true}
	}
	return nil
}

// note says that a test belongs to the run, or that it was started.
func (p *profile) note(name string, started bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.here[name] = started
}

// at gives what is accepted at a point of a test.
func (p *profile) at(point string) ([]ib.Status, bool) {
	if p == nil {
		return nil, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[point] = true
	s, ok := p.accept[point]
	return s, ok
}

// idle gives complaints about entries that nothing needed. Those of tests that a filter kept
// from running are not judged.
func (p *profile) idle() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var bad []string
	for _, names := range []map[string]string{p.known, p.may} {
		for name := range names {
			if _, ok := p.here[name]; !ok {
				bad = append(bad, fmt.Sprintf("the profile names %q, which is no test that ran", name))
			}
		}
	}
	for point := range p.accept {
		entry, _, _ := strings.Cut(point, "/")
		tests, started := 0, 0
		for name, yes := range p.here {
			if strings.HasPrefix(name, entry+"_") {
				tests++
				if yes {
					started++
				}
			}
		}
		switch {
		case tests == 0:
			bad = append(bad, fmt.Sprintf("the profile names the point %q, of no test that ran", point))
		case started == tests && !p.asked[point]:
			bad = append(bad, fmt.Sprintf("the point %q is no longer needed: nothing asked for it", point))
		}
	}
	slices.Sort(bad)
	return bad
}

// excuse is the entry of one test: what it marks with differs, or with stalls, fails; all
// else counts, and so does what its clean-ups find.
type excuse struct {
	testing.TB
	reason string
	may    bool // fails on some runs only

	mu    sync.Mutex
	catch catch
	bad   bool // in the part that is marked now
	parts int
}

// catch is which failures an excuse takes.
type catch uint8

const (
	catchNone   catch = iota
	catchAll          // in a part that differs
	catchStalls       // waits in vain
)

// part runs a marked part of a test with its failures caught.
func (x *excuse) part(c catch, f func()) (failed bool) {
	x.mu.Lock()
	x.catch, x.bad = c, false
	x.parts++
	x.mu.Unlock()
	whole := false
	done := make(chan struct{})
	go func() { // FailNow ends a goroutine
		defer close(done)
		f()
		whole = true
	}()
	<-done
	x.mu.Lock()
	x.catch, failed = catchNone, x.bad
	x.mu.Unlock()
	switch {
	case x.Skipped():
		x.SkipNow()
	case !whole && !failed:
		x.TB.FailNow()
	}
	return failed
}

// caught takes a failure, if it is one of those.
func (x *excuse) caught(stall bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.catch == catchAll || x.catch == catchStalls && stall {
		x.bad = true
		return true
	}
	return false
}

func (x *excuse) Fail() {
	if !x.caught(false) {
		x.TB.Fail()
	}
}

func (x *excuse) FailNow() {
	x.Fail()
	x.end()
}

// end ends the test, or the part of it that runs in a goroutine of its own.
func (x *excuse) end() {
	x.mu.Lock()
	inPart := x.catch != catchNone
	x.mu.Unlock()
	if inPart {
		runtime.Goexit()
	}
	x.TB.FailNow()
}

func (x *excuse) Error(args ...any) {
	x.Helper()
	x.Errorf("%s", fmt.Sprintln(args...))
}

func (x *excuse) Errorf(format string, args ...any) {
	x.Helper()
	if x.caught(false) {
		x.Logf(format, args...)
		return
	}
	x.TB.Errorf(format, args...)
}

func (x *excuse) Fatal(args ...any) {
	x.Helper()
	x.Fatalf("%s", fmt.Sprintln(args...))
}

func (x *excuse) Fatalf(format string, args ...any) {
	x.Helper()
	x.Errorf(format, args...)
	x.end()
}

// runCheck runs a test on a bed.
func runCheck(t testing.TB, c check, b Bed, p *profile, x *excuse) {
	t.Helper()
	if x == nil {
		c.f(newTB(t, b, p, nil))
		return
	}
	if strings.TrimSpace(x.reason) == "" {
		t.Fatalf("the profile names %q without a reason", c.name)
	}
	x.TB = t
	t.Cleanup(func() { // the last one
		if x.parts == 0 && !t.Failed() {
			t.Errorf("known to differ (%s), but marks nothing that may: take it out of the profile", x.reason)
		}
	})
	c.f(newTB(x, b, p, x))
}

// differs runs the part of a test which asks for what a provider may lack, if its profile
// says so. There this part fails, each time, and soon, as many of them wait in vain.
func (t *tb) differs(f func()) {
	t.Helper()
	t.part(catchAll, f)
}

// stalls runs a part that may never come to an end, if the profile says so. What it finds to
// be wrong counts.
func (t *tb) stalls(f func()) (stalled bool) {
	t.Helper()
	return t.part(catchStalls, f)
}

func (t *tb) part(c catch, f func()) (failed bool) {
	t.Helper()
	x := t.excuse
	if x == nil {
		f()
		return false
	}
	if !t.Virtual {
		d := knownLimit
		if x.may {
			d = realLimit
		}
		whole := t.limit
		ctx, cancel := context.WithTimeout(whole, d)
		defer cancel()
		t.limit = ctx
		defer func() { t.limit = whole }()
	}
	failed = x.part(c, f)
	switch {
	case failed:
		t.Logf("differs as known: %s", x.reason)
	case !x.may:
		t.Errorf("known to differ (%s), but passes: take it out of the profile", x.reason)
	}
	return failed
}

// inVain ends the test as ok does, for a wait whose time is over.
func (t *tb) inVain(format string, args ...any) {
	t.Helper()
	if x := t.excuse; x != nil && x.caught(true) {
		t.Logf(format, args...)
		runtime.Goexit()
	}
	t.Fatalf(format, args...)
}

// isLate reports that a wait ended because its time was over.
func isLate(err error) bool { return errors.Is(err, context.DeadlineExceeded) }

// sentAt and gotAt are sent and got at a point where the profile of a provider may have
// another status than the standard. They give whether something completed.
func (e *end) sentAt(id uint64, point string, standard ib.Status) (verbs.WC, bool) {
	e.Helper()
	return e.nextAt(e.scq, "send", id, point, standard)
}

func (e *end) gotAt(id uint64, point string, standard ib.Status) (verbs.WC, bool) {
	e.Helper()
	return e.nextAt(e.rcq, "receive", id, point, standard)
}

func (e *end) nextAt(cq *verbs.CQ, what string, id uint64, point string, standard ib.Status) (verbs.WC, bool) {
	e.Helper()
	accepted, ok := e.profile.at(point)
	switch {
	case !ok:
		accepted = []ib.Status{standard}
	case len(accepted) == 0:
		e.grace()
		var wcs [1]verbs.WC
		n, err := cq.Poll(wcs[:])
		e.ok(err, "%s: poll", e.name)
		if n > 0 {
			e.Fatalf("%s: %s %d completed with %v, nothing is accepted at %s", e.name, what, wcs[0].ID, wcs[0].Status, point)
		}
		return verbs.WC{}, false
	}
	wc, err := cq.Next(e.limit)
	e.ok(err, "%s: wait for %s %d (%v); queue pair %v: %v", e.name, what, id, accepted, e.qp.State(), e.qp.Err())
	switch {
	case wc.ID == id && slices.Contains(accepted, wc.Status):
	case wc.ID == id && wc.Status == standard:
		e.Fatalf("%s: %s %d completed with %v, as it should: %v is no longer needed at %s", e.name, what, id, standard, accepted, point)
	default:
		e.Fatalf("%s: %s %d completed with %v (vendor %#x), want %d with %v (%s)", e.name, what, wc.ID, wc.Status, wc.VendorErr, id, accepted, point)
	}
	if wc.QP == nil {
		e.Errorf("%s: %s %d: completion without queue pair", e.name, what, id)
	}
	return wc, true
}
