package lab_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// roleEnv makes the test program something else than a test: a part that runs on the
// other machine.
const roleEnv = "LAB_ROLE"

var roles = map[string]func(ctx context.Context, args []string) error{
	"agent": func(ctx context.Context, _ []string) error { // in the guest
		l, err := net.Listen("tcp", ":7000")
		if err != nil {
			return err
		}
		return serveAgent(ctx, l)
	},
	"quit": func(ctx context.Context, args []string) error { // on the host's side: ends the agent of a guest
		c, err := net.DialTimeout("tcp", agentAt(args[0]), 30*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		return json.NewEncoder(c).Encode(order{Quit: true})
	},
	"grid": func(ctx context.Context, args []string) error { return gridPeer(ctx, args[0]) },
}

// TestMain makes the programs that lie beside this one found first, by all that it starts.
func TestMain(m *testing.M) {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Setenv("PATH", filepath.Dir(self)+string(os.PathListSeparator)+os.Getenv("PATH"))
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if err := roles[role](ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// inGuest skips a test outside of a guest: TestLab runs it in one.
func inGuest(t *testing.T) *place {
	t.Helper()
	if os.Getenv("LAB_GUEST") == "" {
		t.Skip("runs in a guest of lab/vm, started by TestLab")
	}
	return guestPlace(runHere)
}

// onHost skips a test that does not run on the host's side of a guest's bridge. It waits
// until the agent of the guest is there.
func onHost(t *testing.T) (host, guest *place) {
	t.Helper()
	if os.Getenv("LAB_HOST") == "" {
		t.Skip("runs on the host's side of a guest of lab/vm, started by TestLab")
	}
	host = &place{name: "the host", v4: "10.9.0.1", v6: "fd00:9::1", provider: "soft", run: runHere}
	guest = guestPlace(runAt(firstGuest))
	guest.ready(t)
	return host, guest
}

// ready waits until the agent of a guest is there.
func (p *place) ready(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		c, err := net.DialTimeout("tcp", agentAt(p.v4), time.Second)
		if err == nil {
			c.Close()
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no agent in %s: %v", p.name, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Addresses of the guests.
const firstGuest, secondGuest = "10.9.0.2", "10.9.0.3"

func guestPlace(run func(context.Context, order, io.Writer) error) *place {
	return &place{name: "the guest", v4: firstGuest, v6: "fd00:9::2", provider: "kernel", run: run}
}
