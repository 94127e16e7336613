package rdma

import (
	"net/netip"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// TestC259_ConfigSpin: a Read that blocks waits as Config.Spin says: it sleeps, or it looks and
// does not sleep.
func TestC259_ConfigSpin(t *testing.T) {
	for name, spin := range map[string]verbs.Spin{"sleep": verbs.Sleep, "spin": verbs.SpinFor(time.Hour), "adaptive": verbs.Adaptive} {
		t.Run(name, func(t *testing.T) {
			f := newTestNet(t)
			n, err := (&ListenConfig{Config: &Config{Provider: f.Host(netip.MustParseAddr("10.0.0.1"))}}).Listen(t.Context(), "rdma", "10.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			d := &Dialer{Timeout: time.Minute, Config: &Config{Provider: f.Host(netip.MustParseAddr("10.0.0.2")), Spin: spin}}
			dialled, err := d.Dial("rdma", n.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			s, err := n.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c := dialled.(*Conn)
			defer func() {
				closed := make(chan struct{})
				go func() { s.Close(); close(closed) }()
				c.Close()
				<-closed
			}()
			// The reader waits for the queue itself, unless the hub's goroutine was quicker.
			for range 1000 {
				before := c.hub.cq.Stats().Sleeps // who has the role may be asleep as soon as it has
				read := make(chan error, 1)
				go func() {
					_, err := c.Read(make([]byte, 1))
					read <- err
				}()
				leads := within(20*time.Millisecond, func() bool { return c.hub.role.leader.Load() != nil })
				slept := false
				if leads {
					limit := time.Minute
					if spin != verbs.Sleep {
						limit = 20 * time.Millisecond
					}
					slept = within(limit, func() bool { return c.hub.cq.Stats().Sleeps > before })
				}
				if _, err := s.Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				if err := <-read; err != nil {
					t.Fatal(err)
				}
				if !leads {
					continue
				}
				if c.hub.spin != spin {
					t.Errorf("the queue has the policy %+v", c.hub.spin)
				}
				switch name { // what an adaptive one does depends on the machine
				case "sleep":
					if !slept {
						t.Error("it did not sleep")
					}
				case "spin":
					if slept {
						t.Error("it slept, though it should look for an hour")
					}
				}
				return
			}
			t.Error("the reader never had the role")
		})
	}
}

// within waits for a condition, no longer than d.
func within(d time.Duration, cond func() bool) bool {
	for end := time.Now().Add(d); !cond(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
