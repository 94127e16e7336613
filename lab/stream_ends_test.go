package lab_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/internal/ibverbs"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// Streams meet C programs over rsockets: ours are on the embedded device of the host, or
// on the kernel's device of the guest; theirs are always in the guest.

// sockets is where our end of a stream is.
type sockets struct {
	at *place
	p  verbs.Provider
}

// guestSockets gives our end on the kernel's device, beside the programs.
func guestSockets(t *testing.T) (ours sockets, theirs *place) {
	t.Helper()
	guest := inGuest(t)
	p, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	return sockets{guest, p}, guest
}

// hostSockets gives our end on the embedded device of the host.
func hostSockets(t *testing.T) (ours sockets, theirs *place) {
	t.Helper()
	host, guest := onHost(t)
	p, err := softroce.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return sockets{host, p}, guest
}

// streamLimit is how long one meeting may take.
const streamLimit = 90 * time.Second

// listen has our end listen.
func (s sockets) listen(t *testing.T, addr string, cfg rdma.Config) *rdma.Listener {
	t.Helper()
	cfg.Provider = s.p
	l, err := (&rdma.ListenConfig{Config: &cfg}).Listen(t.Context(), "rdma", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*rdma.Listener)
}

// dial connects our end to a program that was started, as soon as that listens.
func (s sockets) dial(ctx context.Context, t *testing.T, x *program, addr string, cfg rdma.Config) *rdma.Conn {
	t.Helper()
	cfg.Provider = s.p
	d := rdma.Dialer{Config: &cfg, Timeout: 30 * time.Second}
	for {
		c, err := d.DialContext(ctx, "rdma", addr)
		if err == nil {
			return c.(*rdma.Conn)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("%v\n%s:\n%s", err, x.name, x.out.String())
		}
		select {
		case e := <-x.done:
			t.Fatalf("%s ended: %v\n%s", x.name, e, x.out.String())
		case <-ctx.Done():
			t.Fatalf("%s never listens: %v\n%s", x.name, err, x.out.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// meeting is our end and a program's, connected to one another.
type meeting struct {
	ours    sockets
	theirs  *place
	of      func(*place) string // the address
	serves  bool                // the program does
	args    func(addr string) []string
	cfg     rdma.Config
	ok      func(out string) error // what the program must say, if all went well
	stopped bool                   // it does not end by itself
	begins  string                 // what it says as a server when it is ready; empty: nothing
}

// meet starts the program, connects our end with it, and has f use the connection. Both
// must come to a good end.
func (m *meeting) meet(t *testing.T, port string, f func(ctx context.Context, c *rdma.Conn) error) {
	t.Helper()
	if err := m.attempt(t, port, f, streamLimit); err != nil {
		t.Error(err)
	}
}

// attempt is meet in a time, and gives what was wrong.
func (m *meeting) attempt(t *testing.T, port string, f func(ctx context.Context, c *rdma.Conn) error, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit+10*time.Second)
	defer cancel()
	var x *program
	var c *rdma.Conn
	if m.serves {
		x = m.theirs.start(ctx, t, m.args(m.of(m.theirs))...)
		if m.begins != "" {
			until(ctx, t, x, m.begins)
		}
		c = m.ours.dial(ctx, t, x, net.JoinHostPort(m.of(m.theirs), port), m.cfg)
	} else {
		l := m.ours.listen(t, net.JoinHostPort(m.of(m.ours.at), port), m.cfg)
		l.SetDeadline(time.Now().Add(limit))
		x = m.theirs.start(ctx, t, m.args(m.of(m.ours.at))...)
		var err error
		if c, err = l.AcceptRDMA(); err != nil {
			x.stop()
			t.Fatalf("%v, %s: %v\n%s", err, x.name, <-x.done, x.out.String())
		}
		l.Close()
	}
	defer c.Close()
	if tr := c.Transport(); tr.Kind != "rdma" || tr.Peer != "rsockets 1" {
		t.Errorf("transport %+v", tr)
	}
	c.SetDeadline(time.Now().Add(limit))
	err := f(ctx, c)
	if e := c.Close(); e != nil && err == nil {
		err = fmt.Errorf("close: %w", e)
	}
	if m.stopped {
		x.stop()
	}
	var e error
	select {
	case e = <-x.done:
	case <-grace(err):
		x.stop()
		e = fmt.Errorf("had to be stopped: %w", <-x.done)
	}
	out := x.out.String()
	if m.stopped {
		e = nil
	}
	if e == nil && m.ok != nil {
		e = m.ok(out)
	}
	if err != nil || e != nil {
		return errors.Join(err, fmt.Errorf("our side: %+v; %s: %v\n%s", c.Stats(), x.name, e, out))
	}
	return nil
}

// grace is how long a program may go on when our side has failed.
func grace(err error) <-chan time.Time {
	if err == nil {
		return nil
	}
	return time.After(10 * time.Second)
}

// withDefaults gives the arguments of a program that finds other defaults of rsockets than
// the machine's. Options that a server sets with its listening socket are in force only
// for peers that come later, so they are no match for ours.
func withDefaults(defaults map[string]int, args ...string) []string {
	if len(defaults) == 0 {
		return args
	}
	script := "mount -t tmpfs none /etc/rdma && mkdir /etc/rdma/rsocket"
	for _, name := range slices.Sorted(maps.Keys(defaults)) {
		script += fmt.Sprintf(" && echo %d > /etc/rdma/rsocket/%s", defaults[name], name)
	}
	return append([]string{"unshare", "-m", "sh", "-c", script + ` && exec "$@"`, "sh"}, args...)
}

// says gives a check of a program's output.
func says(what string) func(string) error {
	return func(out string) error {
		if !strings.Contains(out, what) {
			return fmt.Errorf("it does not say %q", what)
		}
		return nil
	}
}

// atEnd reads the end of a stream that the peer has closed in order.
func atEnd(c net.Conn) error {
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return fmt.Errorf("%d bytes and %v instead of the end of the stream", n, err)
	}
	return nil
}

// sides runs f with the program as server and as client, over both families: four ways.
func sides(t *testing.T, name string, f func(t *testing.T, way int, serves bool, a family)) {
	for i, verb := range []string{"Serves", "Connects"} {
		for j, a := range families {
			t.Run(path.Join(name+verb, a.name), func(t *testing.T) { f(t, 2*i+j, i == 0, a) })
		}
	}
}

// part is what of a matrix of cases and ways is run: everything with LAB_ALL; else so much
// that each case is seen, and on other kernels than the first only a few of them.
type part struct {
	all, first bool
	place      int
}

func partOf(t *testing.T, ours, theirs *place) part {
	t.Helper()
	p := part{all: os.Getenv("LAB_ALL") != ""}
	if ours != theirs { // beside the guest other ones than in it
		p.place = 1
	}
	kernel := os.Getenv("LAB_GUEST")
	if kernel == "" {
		kernel = strings.TrimSpace(theirs.must(t, "sh", "-c", "echo $LAB_GUEST"))
	}
	p.first = kernel == kernels[0]
	return p
}

// has reports whether case i is run in one of the four ways. The first has them all; others
// one, or if they are of weight two: both directions, and both families.
func (p part) has(i, way int, weighty bool) bool {
	switch {
	case p.all, i == 0:
		return true
	case !p.first:
		return i%8 == 0 && way == (i/8+p.place)%4
	case weighty:
		return way == (i+p.place)%2 || way == 3-(i+p.place)%2
	}
	return way == (i+2*p.place)%4
}

// ourPair gives two ends of ours that are connected, over a network in memory: for tests
// that our sides of the protocols understand one another.
func ourPair(t *testing.T, cfg rdma.Config) (s, c *rdma.Conn) {
	t.Helper()
	f := rdmatest.NewFabric(t, 1)
	at := netip.MustParseAddr("10.0.0.1")
	l := sockets{p: f.Host(at)}.listen(t, netip.AddrPortFrom(at, 0).String(), cfg)
	defer l.Close()
	var all sync.WaitGroup
	all.Go(func() {
		var err error
		if s, err = l.AcceptRDMA(); err != nil {
			t.Error(err)
		}
	})
	cfg.Provider = f.Host(netip.MustParseAddr("10.0.0.2"))
	n, err := (&rdma.Dialer{Config: &cfg, Timeout: 30 * time.Second}).Dial("rdma", l.Addr().String())
	if err != nil {
		l.Close()
	}
	all.Wait()
	if err != nil || s == nil {
		t.Fatal(err)
	}
	return s, n.(*rdma.Conn)
}
