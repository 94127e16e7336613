package rdmatest

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// fakeTB collects what a helper does to a test.
type fakeTB struct {
	testing.TB
	errors   []string
	cleanups []func()
}

func (f *fakeTB) Helper()          {}
func (f *fakeTB) Failed() bool     { return len(f.errors) > 0 }
func (f *fakeTB) Cleanup(g func()) { f.cleanups = append(f.cleanups, g) }
func (f *fakeTB) Errorf(format string, args ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}

// end runs the clean-ups and gives the errors.
func (f *fakeTB) end() string {
	for len(f.cleanups) > 0 {
		last := len(f.cleanups) - 1
		g := f.cleanups[last]
		f.cleanups = f.cleanups[:last]
		g()
	}
	return strings.Join(f.errors, "\n")
}

// heldTB is a fakeTB whose test may end at once.
type heldTB struct{ fakeTB }

func (h *heldTB) Fail()         { h.Errorf("failed") }
func (h *heldTB) FailNow()      { h.Fail(); runtime.Goexit() }
func (h *heldTB) Skipped() bool { return false }
func (h *heldTB) Fatalf(format string, args ...any) {
	h.Errorf(format, args...)
	runtime.Goexit()
}

// runHeld runs a test of the suite under a profile, with its clean-ups, and gives what it
// complains about.
func runHeld(t *testing.T, c check, o *ConformanceOptions) (complaints string) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFabric(t, 1)
		held := &heldTB{fakeTB{TB: t}}
		p := newProfile(o)
		p.note(c.name, true)
		done := make(chan struct{})
		go func() {
			defer close(done)
			runCheck(held, c, fabricBed(f), p, p.excuse(c.name))
		}()
		<-done
		complaints = strings.Join(append(p.idle(), held.end()), "\n")
	})
	return strings.TrimSpace(complaints)
}

// A profile excuses the marked part of a test if it fails, and nothing else.
func TestKnown(t *testing.T) {
	t.Parallel()
	const name = "C-999_Test"
	good := func(*tb) {}
	fails := func(t *tb) { t.Fatalf("not as it should be") }
	waits := func(t *tb) { t.ok(context.DeadlineExceeded, "wait") }
	leaks := func(t *tb) {
		pd, err := t.a.AllocPD()
		t.ok(err, "allocate")
		t.TB.Cleanup(func() { t.closed(pd, "domain") })
		t.TB.Cleanup(func() { t.Errorf("found when it is cleaned up") })
	}
	marked := func(in, after func(t *tb)) func(*tb) {
		return func(t *tb) {
			t.differs(func() { in(t) })
			after(t)
		}
	}
	stalling := func(in, after func(t *tb)) func(*tb) {
		return func(t *tb) {
			t.stalls(func() { in(t) })
			after(t)
		}
	}
	for _, c := range []struct {
		what   string
		f      func(*tb)
		reason string // "": no entry
		may    bool
		want   string // a complaint
	}{
		{"no entry", marked(good, good), "", false, ""},
		{"no entry, fails", marked(fails, good), "", false, "not as it should be"},
		{"known", marked(fails, good), "it is old", false, ""},
		{"known, passes", marked(good, good), "it is old", false, "take it out"},
		{"known, fails elsewhere", marked(fails, fails), "it is old", false, "not as it should be"},
		{"known, fails before", fails, "it is old", false, "not as it should be"},
		{"known, marks nothing", good, "it is old", false, "take it out"},
		{"known, without a reason", marked(fails, good), " ", false, "without a reason"},
		{"known, fails in its clean-up", marked(fails, leaks), "it is old", false, "when it is cleaned up"},
		{"known, one part of two", func(t *tb) { marked(fails, good)(t); marked(good, good)(t) }, "it is old", false, "take it out"},
		{"unsteady, fails", marked(fails, good), "it is slow", true, ""},
		{"unsteady, passes", marked(good, good), "it is slow", true, ""},
		{"unsteady, fails elsewhere", marked(good, fails), "it is slow", true, "not as it should be"},
		{"unsteady, marks nothing", good, "it is slow", true, "take it out"},
		{"stalls", stalling(waits, good), "it is slow", true, ""},
		{"stalls, and is wrong", stalling(fails, good), "it is slow", true, "not as it should be"},
		{"stalls elsewhere", stalling(waits, waits), "it is slow", true, "wait"},
	} {
		o := &ConformanceOptions{}
		switch {
		case c.reason == "":
		case c.may:
			o.Unsteady = map[string]string{name: c.reason}
		default:
			o.Known = map[string]string{name: c.reason}
		}
		if got := runHeld(t, check{name, 0, c.f}, o); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: complaints %q, want %q", c.what, got, c.want)
		}
	}
	o := &ConformanceOptions{Known: map[string]string{"C-998_Other": "a"}, Unsteady: map[string]string{"C-997_Other": "b"}}
	if got := runHeld(t, check{name, 0, good}, o); strings.Count(got, "no test that ran") != 2 {
		t.Errorf("names that did not run: %q", got)
	}
}

// What is accepted at a point of a test is all that will do there, and must be asked for.
func TestAccept(t *testing.T) {
	t.Parallel()
	refused := check{"C-999_Refused", 0, func(t *tb) { // completes with REM_ACCESS_ERR
		a, b := t.pair()
		bad := remoteOf(b.mr, 0, 8)
		bad.RKey ^= 1
		a.send(verbs.Write(1, bad, a.sge(0, 8), ib.Signaled))
		a.sentAt(1, "C-999/sender", ib.StatusRemAccess)
	}}
	lost := check{"C-999_Lost", 0, func(t *tb) { // does not complete
		a, _ := t.pair()
		a.send(verbs.Send(1, a.sge(0, 8), ib.Signaled))
		a.sentAt(1, "C-999/sender", ib.StatusSuccess)
	}}
	const point = "C-999/sender"
	for _, c := range []struct {
		what   string
		c      check
		accept map[string][]ib.Status
		want   string
	}{
		{"the standard", refused, nil, ""},
		{"the alternative", check{"C-999_Other", 0, func(t *tb) {
			a, b := t.pair()
			bad := remoteOf(b.mr, 0, 8)
			bad.RKey ^= 1
			a.send(verbs.Write(1, bad, a.sge(0, 8), ib.Signaled))
			a.sentAt(1, point, ib.StatusSuccess)
		}}, map[string][]ib.Status{point: {ib.StatusRemAccess}}, ""},
		{"the standard where another is accepted", refused, map[string][]ib.Status{point: {ib.StatusRemOp}}, "no longer needed"},
		{"either", refused, map[string][]ib.Status{point: {ib.StatusRemOp, ib.StatusRemAccess}}, ""},
		{"nothing, and it comes", refused, map[string][]ib.Status{point: {}}, "nothing is accepted"},
		{"nothing", lost, map[string][]ib.Status{point: {}}, ""},
		{"a point that nobody asks for", refused, map[string][]ib.Status{"C-999/other": {ib.StatusRemOp}}, "no longer needed"},
		{"a point of another entry", refused, map[string][]ib.Status{"C-998/sender": {ib.StatusRemOp}}, "no test that ran"},
	} {
		got := runHeld(t, c.c, &ConformanceOptions{Accept: c.accept})
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: complaints %q, want %q", c.what, got, c.want)
		}
	}
}

// A fabric reports what is left open on its hosts.
func TestC304_FabricLeaks(t *testing.T) {
	t.Parallel()
	for what, leak := range map[string]func(t *testing.T, p verbs.Provider) io.Closer{
		"nothing": func(t *testing.T, p verbs.Provider) io.Closer { return nil },
		"PD": func(t *testing.T, p verbs.Provider) io.Closer {
			d, err := verbs.Open(p, "")
			if err != nil {
				t.Fatal(err)
			}
			pd, err := d.AllocPD()
			if err != nil {
				t.Fatal(err)
			}
			return pd
		},
		"event channel": func(t *testing.T, p verbs.Provider) io.Closer { return newChannel(t, p) },
		"cm id":         func(t *testing.T, p verbs.Provider) io.Closer { return newID(t, p) },
	} {
		for _, closed := range []bool{true, false} {
			fake := &fakeTB{TB: t}
			f := NewFabric(fake, 1)
			o := leak(t, f.Host(netip.MustParseAddr("10.0.0.1")))
			if closed && o != nil {
				o.Close()
			}
			want := ""
			if !closed && o != nil {
				want = "left open: " + what
			}
			if got := fake.end(); want == "" && got != "" || !strings.Contains(got, want) {
				t.Errorf("%s, closed %v: reported %q", what, closed, got)
			}
			if o != nil {
				o.Close()
			}
		}
	}
}

// newChannel makes an event channel, newID an id whose calls wait.
func newChannel(t *testing.T, p verbs.Provider) *cm.EventChannel {
	t.Helper()
	ch, err := cm.NewEventChannel(p)
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func newID(t *testing.T, p verbs.Provider) *cm.ID {
	t.Helper()
	id, err := cm.NewID(p, ib.PortSpaceTCP)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// CheckLeaks finds objects, goroutines and descriptors.
func TestC304_CheckLeaks(t *testing.T) {
	defer func(d time.Duration) { leakWait = d }(leakWait)
	leakWait = 100 * time.Millisecond
	stop := make(chan struct{})
	defer close(stop)
	buf := new(verbs.Buffer)
	var file *os.File
	p, err := softroce.New(&softroce.Config{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var ch *cm.EventChannel
	var id *cm.ID
	had := newChannel(t, p)
	defer had.Close()
	for _, c := range []struct {
		what string
		leak func()
		want string
	}{
		{"nothing", func() {}, ""},
		{"a buffer", func() {
			b, err := verbs.AllocBuffer(4096, nil)
			if err != nil {
				t.Fatal(err)
			}
			buf = b
		}, "self_test.go"},
		{"an event channel", func() { ch = newChannel(t, p) }, "event channel"},
		{"an id", func() { id = newID(t, p) }, "cm id"},
		{"a goroutine", func() {
			go func() { <-stop }()
		}, "goroutine"},
		{"a goroutine of a goroutine", func() {
			started := make(chan struct{})
			go func() {
				go func() { <-stop }()
				close(started)
			}()
			<-started
		}, "goroutine"},
		{"a descriptor", func() {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			file = f
		}, "descriptor"},
	} {
		if c.want == "descriptor" && openDescriptors() == nil {
			continue // not known on this system
		}
		fake := &fakeTB{TB: t}
		CheckLeaks(fake)
		c.leak()
		got := fake.end()
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: reported %q, want %q", c.what, got, c.want)
		}
	}
	buf.Close()
	file.Close()
	ch.Close()
	id.Close()
}

// Tests that end while goroutines of the library serve the process leave nothing.
func TestC304_NothingOfConnections(t *testing.T) {
	fake := &fakeTB{TB: t}
	CheckLeaks(fake)
	a, b := QPPair(fake, verbs.QPConfig{})
	if a.QP().State() != ib.StateRTS || b.QP().State() != ib.StateRTS {
		t.Error("not connected")
	}
	if got := fake.end(); got != "" {
		t.Errorf("reported %s", got)
	}
}
