package rdma_test

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	rdma "github.com/verbena-rdma/verbena"
)

// What a test that each or pairs runs waits for: in a bubble, until nothing goes on any more;
// on a kernel's device, in real time.

// comes waits until a state is there. A bubble has it as soon as nothing goes on; a kernel
// does not say when that is, so there it is looked at again and again.
func (l *rig) comes(t testing.TB, what string, state func() bool) {
	t.Helper()
	if l.fabric != nil {
		synctest.Wait()
		if !state() {
			t.Fatalf("not so: %s", what)
		}
		return
	}
	for end := time.Now().Add(30 * time.Second); !state(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so after half a minute: %s", what)
		}
	}
}

// of gives a time, or in the lab another one: its time is real, and its machines are slow.
func (l *place) of(usual, lab time.Duration) time.Duration {
	if l.name == "kernel" {
		return lab
	}
	return usual
}

// times is of for numbers.
func (l *place) times(usual, lab int) int {
	if l.name == "kernel" {
		return lab
	}
	return usual
}

// fill writes until nothing is taken any more, as nobody reads.
func (l *rig) fill(t testing.TB, c *rdma.Conn) {
	t.Helper()
	b := make([]byte, 1<<20)
	for full := false; !full; {
		c.SetWriteDeadline(time.Now().Add(l.of(time.Second, 300*time.Millisecond)))
		n, err := c.Write(b)
		if full = n == 0 && c.Stats().CreditStalls > 0; err != nil {
			isErr(t, "Write", err, os.ErrDeadlineExceeded)
		}
	}
	c.SetWriteDeadline(time.Time{})
}

// asleep gives a state: n calls of a connection wait.
func asleep(c *rdma.Conn, n uint64) func() bool {
	return func() bool {
		s := c.Stats()
		return s.Sleeps-s.Wakeups == n
	}
}
