package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/verbs"
)

// obstacles are errors of accept that pass.
var obstacles = []error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ECONNABORTED, syscall.EPERM, syscall.EPROTO,
	fmt.Errorf("wrapped: %w", syscall.EMFILE), errors.New("unheard of"),
}

// failing has accept fail with some errors first.
type failing struct {
	requests
	sockets
	errs  chan error
	calls func()
}

func fails(errs ...error) failing {
	f := failing{errs: make(chan error, len(errs))}
	for _, err := range errs {
		f.errs <- err
	}
	return f
}

// next gives the next error.
func (f *failing) next() error {
	if f.calls != nil {
		f.calls()
	}
	select {
	case err := <-f.errs:
		return err
	default:
		return nil
	}
}

func (f *failing) Accept(ctx context.Context) (*cm.Request, error) {
	if err := f.next(); err != nil {
		return nil, err
	}
	return f.requests.Accept(ctx)
}

func (f *failing) AcceptTCP() (*net.TCPConn, error) {
	if err := f.next(); err != nil {
		return nil, err
	}
	return f.sockets.AcceptTCP()
}

func (f *failing) Close() error {
	if f.requests != nil {
		return f.requests.Close()
	}
	return f.sockets.Close()
}

// begun is a listener that is bound and does not accept yet.
func begun(t *testing.T, cfg *Config, address string) *Listener {
	t.Helper()
	c, err := cfg.settle()
	if err != nil {
		t.Fatal(err)
	}
	l := &Listener{cfg: c, network: "rdma", backlog: 10}
	l.init()
	a := netip.MustParseAddrPort(address)
	if err := l.bind(anyFamily, a.Addr().String(), a); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestObstaclesRDMA: errors of accept that pass do not end the RDMA half: each is told of,
// and then comes a connection.
func TestObstaclesRDMA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newTestNet(t)
		var told []error
		cfg := &Config{Provider: fabric.Host(netip.MustParseAddr("10.0.0.1")), Trace: &Trace{Refused: func(peer netip.AddrPort, err error) {
			if peer.IsValid() {
				t.Errorf("%v: of %v", err, peer)
			}
			told = append(told, err)
		}}}
		l := begun(t, cfg, "10.0.0.1:7471")
		defer l.Close()
		f := fails(obstacles...)
		f.requests = l.cm
		l.cm = &f
		l.start()
		c, err := (&Dialer{Config: &Config{Provider: fabric.Host(netip.MustParseAddr("10.0.0.2"))}}).Dial("rdma", "10.0.0.1:7471")
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Accept()
		if err != nil {
			c.Close()
			t.Fatal(err)
		}
		defer closeBoth(c, s)
		if !slices.Equal(told, obstacles) {
			t.Errorf("told of %v", told)
		}
	})
}

// closeBoth closes the two ends of a connection, as each waits for the other.
func closeBoth(a, b net.Conn) {
	var done sync.WaitGroup
	done.Go(func() { b.Close() })
	a.Close()
	done.Wait()
}

// TestObstaclesTCP: the same of the other half.
func TestObstaclesTCP(t *testing.T) {
	told := make(chan error, len(obstacles))
	gone := newTestNet(t).Host(netip.MustParseAddr("10.0.0.1"))
	cfg := &Config{Provider: gone, Fallback: TCPFallback, Trace: &Trace{Refused: func(_ netip.AddrPort, err error) { told <- err }}}
	l := begun(t, cfg, "127.0.0.1:0")
	defer l.Close()
	if l.cm != nil || l.tcp == nil {
		t.Fatal("the host has that address for RDMA")
	}
	f := fails(obstacles...)
	f.sockets = l.tcp
	l.tcp = &f
	l.start()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, want := range obstacles {
		if got := <-told; got != want {
			t.Errorf("told of %v, want %v", got, want)
		}
	}
}

// TestObstaclePauses: the tries are further and further apart, begin anew after one that
// went well, and end with Close.
func TestObstaclePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newTestNet(t)
		host := fabric.Host(netip.MustParseAddr("10.0.0.1"))
		l := begun(t, &Config{Provider: host}, "10.0.0.1:7471")
		var at []time.Duration
		start := time.Now()
		f := fails(slices.Repeat([]error{syscall.EMFILE}, 12)...)
		f.calls = func() { at = append(at, time.Since(start)) }
		f.requests = l.cm
		l.cm = &f
		l.start()
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []time.Duration{0}
		for _, ms := range []time.Duration{5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 1000} {
			want = append(want, want[len(want)-1]+ms*time.Millisecond)
		}
		if !slices.Equal(at, want) {
			t.Errorf("tried at %v, want %v", at, want)
		}
		c, err := (&Dialer{Config: &Config{Provider: fabric.Host(netip.MustParseAddr("10.0.0.2"))}}).Dial("rdma", "10.0.0.1:7471")
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		closeBoth(c, s)
		l.Close()
		synctest.Wait() // and nobody is left: the bubble would not end
	})
}

// TestObstaclesEnd: a listener whose device is gone ends, and Accept says why.
func TestObstaclesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := begun(t, &Config{Provider: newTestNet(t).Host(netip.MustParseAddr("10.0.0.1"))}, "10.0.0.1:7471")
		defer l.Close()
		f := fails(syscall.EMFILE, verbs.ErrDeviceGone)
		f.requests = l.cm
		l.cm = &f
		l.start()
		_, err := l.Accept()
		var op *net.OpError
		if !errors.Is(err, verbs.ErrDeviceGone) || !errors.As(err, &op) || op.Op != "accept" {
			t.Error(err)
		}
	})
}
