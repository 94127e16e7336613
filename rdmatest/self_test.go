package rdmatest

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
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

// A profile excuses a test that fails, and complains about one that does not.
func TestKnown(t *testing.T) {
	t.Parallel()
	fails := check{"C-999_Fails", 0, func(t *tb) {
		defer func() { t.Error("deferred") }()
		t.Fatalf("not as it should be")
	}}
	passes := check{"C-999_Passes", 0, func(*tb) {}}
	for _, c := range []struct {
		check    check
		reason   string
		unsteady bool
		bad      bool
	}{
		{fails, "the device is old", false, false},
		{passes, "the device is old", false, true},
		{fails, " ", false, true},
		{fails, "the device is slow", true, false},
		{passes, "the device is slow", true, false},
		{passes, "", true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := NewFabric(t, 1)
			outer := &knownTB{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				runCheck(outer, c.check, fabricBed(f), c.reason, !c.unsteady, c.unsteady)
			}()
			<-done
			if outer.failed() != c.bad {
				t.Errorf("%s with reason %q: failed %v, want %v", c.check.name, c.reason, outer.failed(), c.bad)
			}
		})
	}
	p := newProfile(map[string]string{"C-1_A": "a", "C-2_B": "b"})
	if r, ok := p.take("C-1_A"); !ok || r != "a" {
		t.Errorf("took %q, %v", r, ok)
	}
	if left := p.rest(); len(left) != 1 || left[0] != "C-2_B" {
		t.Errorf("names that did not run: %v", left)
	}
}

// A fabric reports what is left open on its hosts.
func TestC304_FabricLeaks(t *testing.T) {
	t.Parallel()
	for _, leak := range []bool{false, true} {
		fake := &fakeTB{TB: t}
		f := NewFabric(fake, 1)
		d, err := verbs.Open(f.Host(netip.MustParseAddr("10.0.0.1")), "")
		if err != nil {
			t.Fatal(err)
		}
		pd, err := d.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		if !leak {
			pd.Close()
		}
		if got := fake.end(); strings.Contains(got, "left open") != leak {
			t.Errorf("leak %v: reported %q", leak, got)
		}
	}
}

// CheckLeaks finds objects, goroutines and descriptors.
func TestC304_CheckLeaks(t *testing.T) {
	defer func(d time.Duration) { leakWait = d }(leakWait)
	leakWait = 100 * time.Millisecond
	stop := make(chan struct{})
	defer close(stop)
	buf := new(verbs.Buffer)
	var file *os.File
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
