package netio

import (
	"flag"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
)

// TestMain looks for descriptors and goroutines that tests left behind.
func TestMain(m *testing.M) {
	// The poller's own descriptors stay once they are there.
	if c, err := net.ListenPacket("udp", "127.0.0.1:0"); err == nil {
		c.Close()
	}
	fds, goroutines := descriptors(), runtime.NumGoroutine()
	code := m.Run()
	fuzzing := flag.Lookup("test.fuzz").Value.String() != "" // which leaves a goroutine of its own
	if code == 0 && !fuzzing {
		if n := descriptors(); n > fds {
			println("descriptors left behind:", n-fds)
			code = 1
		}
		// A goroutine that was told to end may still be on its way.
		for i := 0; runtime.NumGoroutine() > goroutines; i++ {
			if i > 1e6 {
				println("goroutines left behind:", runtime.NumGoroutine()-goroutines)
				code = 1
				break
			}
			runtime.Gosched()
		}
	}
	os.Exit(code)
}

func descriptors() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}

func TestErrorsLeakNothing(t *testing.T) {
	t.Parallel()
	c := open(t, loopbacks[0], everything)
	for range 20 { // counted at the end
		for _, a := range []netip.AddrPort{c.LocalAddr(), netip.MustParseAddrPort("192.0.2.77:4791"), {}} {
			if _, err := Listen(a); err == nil {
				t.Fatalf("%v can be listened on", a)
			}
		}
		if _, err := RouteSource(netip.MustParseAddr("fe80::1")); err == nil {
			t.Fatal("a link-local address without its zone has a route")
		}
	}
}
