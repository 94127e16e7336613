package lab_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// end is one end of an exchange between two programs.
type end struct {
	at    *place
	args  []string
	shows string // what its output has, if all went well
	stays bool   // a server that serves until it is stopped
}

// family is a kind of address.
type family struct {
	name string
	of   func(*place) string
}

var families = []family{
	{"IPv4", func(p *place) string { return p.v4 }},
	{"IPv6", func(p *place) string { return p.v6 }},
}

// exchange starts a server, and a client until it finds the server there.
func exchange(t *testing.T, server, client end) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	s := server.at.start(ctx, t, server.args...)
	if server.stays {
		until(ctx, t, s, "serving on")
	}
	var c *program
	for {
		c = client.at.start(ctx, t, client.args...)
		err := <-c.done
		if err == nil {
			break
		}
		select {
		case err := <-s.done:
			t.Fatalf("%s ended: %v\n%s\n%s:\n%s", s.name, err, s.out.String(), c.name, c.out.String())
		case <-ctx.Done():
			t.Fatalf("%s never succeeded: %v\n%s\n%s:\n%s", c.name, err, c.out.String(), s.name, s.out.String())
		case <-time.After(100 * time.Millisecond): // until the server listens
		}
	}
	if server.stays {
		s.stop()
	}
	err := <-s.done
	if !server.stays && err != nil {
		t.Errorf("%s: %v\n%s", s.name, err, s.out.String())
	}
	// The exit status of the example programs proves little.
	for _, x := range []struct {
		p    *program
		want string
	}{{s, server.shows}, {c, client.shows}} {
		if out := x.p.out.String(); !strings.Contains(out, x.want) {
			t.Errorf("%s does not say %q:\n%s", x.p.name, x.want, out)
		}
	}
}

// TestGuestRping: verbena ping and rdma-core's rping understand each other on the kernel's
// device, either of them as server.
func TestGuestRping(t *testing.T) {
	guest := inGuest(t)
	rping(t, guest, guest)
}

// TestHostRping: verbena ping on the embedded device of one machine, and rping on the
// kernel's device of another.
func TestHostRping(t *testing.T) {
	host, guest := onHost(t)
	rping(t, host, guest)
}

// rping has verbena ping at one place exchange with rping at another.
func rping(t *testing.T, ours, theirs *place) {
	const count, size = 5, 3000 // three packets
	n, s := fmt.Sprint(count), fmt.Sprint(size)
	last := fmt.Sprintf("rdma-ping-%d: ", count-1)
	for _, f := range families {
		t.Run("RpingServes/"+f.name, func(t *testing.T) {
			exchange(t,
				end{at: theirs, args: []string{"rping", "-s", "-a", f.of(theirs), "-C", n, "-S", s, "-v"}, shows: "server ping data: " + last},
				end{at: ours, args: []string{"verbena", "ping", "-n", n, "-size", s, "-tcp=false", "-interval", "0", f.of(theirs)}})
		})
		t.Run("VerbenaServes/"+f.name, func(t *testing.T) {
			exchange(t,
				end{at: ours, args: []string{"verbena", "ping", "-listen", f.of(ours)}, stays: true},
				end{at: theirs, args: []string{"rping", "-c", "-a", f.of(ours), "-C", n, "-S", s, "-V", "-v"}, shows: "ping data: " + last})
		})
	}
}

// until waits until a program has said something.
func until(ctx context.Context, t *testing.T, p *program, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for !strings.Contains(p.out.String(), what) {
		select {
		case err := <-p.done:
			t.Fatalf("%s ended: %v\n%s", p.name, err, p.out.String())
		case <-ctx.Done():
			t.Fatalf("%s never says %q:\n%s", p.name, what, p.out.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
