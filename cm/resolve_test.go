package cm_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestResolveRetries: an unanswered step is tried again with doubling limits, then the
// error is that of the network.
func TestResolveRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cm.Script(func(id *scripted.CMID, c scripted.CMCall) (bool, error) {
			if c.Name != "ResolveAddr" {
				return false, nil
			}
			time.AfterFunc(c.Limit, func() { id.Post(driver.CMEvent{Type: cm.AddrError, Status: -int(syscall.ETIMEDOUT)}) })
			return true, nil
		})
		start := time.Now()
		_, err := cm.Resolve(t.Context(), w.p, "10.0.0.2:1", &cm.Config{Retry: 100 * time.Millisecond})
		var op *cm.OpError
		if !errors.Is(err, syscall.ETIMEDOUT) || !errors.As(err, &op) || !op.Timeout() || op.Remote.String() != "10.0.0.2:1" || op.Hint == "" {
			t.Errorf("got %v", err)
		}
		var limits []time.Duration
		for _, c := range w.cm.Calls("ResolveAddr") {
			limits = append(limits, c.Limit)
		}
		if len(limits) != 6 || limits[0] != 100*time.Millisecond || limits[5] != 3200*time.Millisecond {
			t.Errorf("limits %v", limits)
		}
		if d := time.Since(start); d != 6300*time.Millisecond {
			t.Errorf("took %v", d)
		}
		// Another error is final.
		w.cm.Script(func(_ *scripted.CMID, c scripted.CMCall) (bool, error) {
			return c.Name == "ResolveAddr", syscall.ENETUNREACH
		})
		before := len(w.cm.Calls("ResolveAddr"))
		_, err = cm.Resolve(t.Context(), w.p, "10.0.0.2:1", nil)
		if !errors.Is(err, syscall.ENETUNREACH) || len(w.cm.Calls("ResolveAddr")) != before+1 {
			t.Errorf("got %v", err)
		}
	})
}

func TestResolveAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	for addr, want := range map[string]string{
		":7": "127.0.0.1:7", "0.0.0.0:7": "127.0.0.1:7", "[::]:7": "[::1]:7", "10.0.0.3:7": "10.0.0.3:7", "[::ffff:10.0.0.3]:7": "10.0.0.3:7", "[fe80::1%eth0]:7": "[fe80::1%eth0]:7",
	} {
		r, err := cm.Resolve(ctx, w.p, addr, nil)
		if err != nil {
			t.Errorf("%s: %v", addr, err)
			continue
		}
		if got := r.RemoteAddr().String(); got != want {
			t.Errorf("%s: resolved %s, want %s", addr, got, want)
		}
		r.Close()
		if _, err := r.Connect(ctx, nil); !errors.Is(err, net.ErrClosed) {
			t.Errorf("connect on a closed route: %v", err)
		}
	}
	src := netip.MustParseAddrPort("10.0.0.1:0")
	for addr, cfg := range map[string]*cm.Config{
		"[fe80::1]:7":      nil,                                // C-227: no zone
		"10.0.0.1":         nil,                                // no port
		"10.0.0.1:-1":      nil,                                // bad port
		"10.0.0.2:7":       {PortSpace: ib.PortSpaceUDP},       // no connections
		"10.0.0.4:7":       {Retry: -1},                        //
		"[2001:db8::1]:77": {LocalAddr: src},                   // another family
		"10.0.0.9:7":       {LocalAddr: src, PortSpace: 0xfff}, // no port space
	} {
		if r, err := cm.Resolve(ctx, w.p, addr, cfg); err == nil {
			t.Errorf("%s, %+v: no error", addr, cfg)
			r.Close()
		}
	}
	r, err := cm.Resolve(ctx, w.p, "10.0.0.2:7", &cm.Config{LocalAddr: src, TOS: 8})
	must(t, err)
	if r.LocalAddr().Addr() != src.Addr() {
		t.Errorf("from %v", r.LocalAddr())
	}
	r.Close()
	if _, err := cm.Listen(w.p, "10.0.0.1:0", &cm.Config{Backlog: -1}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("negative backlog: %v", err)
	}
}

// TestResolveAllAddresses: of several addresses the first that works is taken, each gets
// its share of the time, and if none works all errors are told.
func TestResolveAllAddresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		addrs := []netip.AddrPort{
			netip.MustParseAddrPort("10.0.0.2:7"), // nobody answers
			netip.MustParseAddrPort("10.0.0.3:7"), // no route
			netip.MustParseAddrPort("10.0.0.4:7"),
		}
		good := true
		w.cm.Script(func(id *scripted.CMID, c scripted.CMCall) (bool, error) {
			switch {
			case c.Name != "ResolveAddr":
			case c.Dst == addrs[0]:
				return true, nil
			case c.Dst == addrs[1] || !good:
				return true, syscall.ENETUNREACH
			}
			return false, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		start := time.Now()
		r, err := cm.ResolveAddrs(ctx, w.p, addrs)
		must(t, err)
		if r.RemoteAddr() != addrs[2] {
			t.Errorf("resolved %v", r.RemoteAddr())
		}
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("the first address took %v of 30 s for three", d)
		}
		must(t, r.Close())

		good = false
		short, cancel2 := context.WithTimeout(t.Context(), time.Second) // less than a share
		defer cancel2()
		_, err = cm.ResolveAddrs(short, w.p, addrs)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ENETUNREACH) {
			t.Errorf("short: %v", err)
		}
		_, err = cm.ResolveAddrs(t.Context(), w.p, addrs[1:])
		var op *cm.OpError
		if !errors.Is(err, syscall.ENETUNREACH) || !errors.As(err, &op) || !strings.Contains(err.Error(), "10.0.0.3:7") || !strings.Contains(err.Error(), "10.0.0.4:7") {
			t.Errorf("both: %v", err)
		}
	})
}

// TestNames: names go through Go's resolver, which knows localhost without a network.
func TestNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l, err := cm.Listen(w.p, "localhost:0", nil)
	must(t, err)
	defer l.Close()
	if a := l.Addr().(cm.Addr); !a.Addr().IsLoopback() {
		t.Errorf("listens on %v", a)
	}
	r, err := cm.Resolve(t.Context(), w.p, "localhost:http", nil)
	must(t, err)
	defer r.Close()
	if a := r.RemoteAddr(); !a.Addr().IsLoopback() || a.Port() != 80 {
		t.Errorf("resolved %v", a)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = cm.Resolve(ctx, w.p, "no-such-host.invalid:1", nil)
	var op *cm.OpError
	if !errors.As(err, &op) || op.Op != "look up" {
		t.Errorf("got %v", err)
	}
}

// TestAddr: what Addr prints can be dialled, and the zero one says that it is none.
func TestAddr(t *testing.T) {
	t.Parallel()
	for want, a := range map[string]cm.Addr{
		"<nil>": {}, "10.0.0.1:7": {AddrPort: netip.MustParseAddrPort("10.0.0.1:7")}, "[fe80::1%eth0]:7": {AddrPort: netip.MustParseAddrPort("[fe80::1%eth0]:7")},
	} {
		if got := fmt.Sprint(a); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
