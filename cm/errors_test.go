package cm

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func TestC203_RejectErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason  ib.RejectReason
		refused bool
	}{{ib.RejectInvalidServiceID, true}, {ib.RejectConsumer, true}, {ib.RejectStaleConn, false}, {ib.RejectNoResources, false}} {
		var err error = &OpError{Op: opConnect, Err: &RejectError{Reason: c.reason}}
		if got := errors.Is(err, syscall.ECONNREFUSED); got != c.refused {
			t.Errorf("%v is ECONNREFUSED: %v", c.reason, got)
		}
		if !errors.Is(err, c.reason) {
			t.Errorf("%v is not its reason", err)
		}
		// Calls that wait make ECONNREFUSED of all.
		err = &OpError{Op: opConnect, Err: refused{&RejectError{Reason: c.reason}}}
		var rej *RejectError
		if !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &rej) || rej.Reason != c.reason {
			t.Errorf("waiting: %v", err)
		}
		if errors.Is(err, syscall.ETIMEDOUT) {
			t.Error("a rejection is no time-out")
		}
	}
}

func TestOpErrorText(t *testing.T) {
	t.Parallel()
	a, b := netip.MustParseAddrPort("10.0.0.1:4000"), netip.MustParseAddrPort("10.0.0.2:7471")
	for _, c := range []struct {
		err  *OpError
		want string
	}{
		{&OpError{Op: "connect", Local: a, Remote: b, Device: "soft0", Err: wrong("cm: no"), Hint: "look"}, "cm: connect 10.0.0.1:4000->10.0.0.2:7471 on soft0: no (look)"},
		{&OpError{Op: "resolve address", Remote: b, Err: io.EOF}, "cm: resolve address 10.0.0.2:7471: EOF"},
		{&OpError{Op: "bind", Local: a}, "cm: bind 10.0.0.1:4000"},
		{nil, "cm: <nil>"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
	for err, want := range map[error]bool{
		os.ErrDeadlineExceeded: true, context.DeadlineExceeded: true, syscall.ETIMEDOUT: true,
		context.Canceled: false, io.EOF: false,
	} {
		var ne net.Error = &OpError{Op: "connect", Err: err}
		if ne.Timeout() != want {
			t.Errorf("Timeout of %v: %v", err, !want)
		}
		if got, want := errors.Is(ne, os.ErrDeadlineExceeded), want && err != syscall.ETIMEDOUT; got != want {
			t.Errorf("%v is os.ErrDeadlineExceeded: %v", err, got)
		}
	}
}

// TestHints: each says something for its case, and nothing for success of another kind.
func TestHints(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		op   string
		err  error
		want string
	}{
		{opConnect, &RejectError{Reason: ib.RejectStaleConn}, "new id"},
		{opConnect, &RejectError{Reason: ib.RejectConsumer}, ""},
		{opChannel, errors.ErrUnsupported, "no connection manager"},
		{opChannel, syscall.ENODEV, "no RDMA device"},
		{opChannel, syscall.ENOENT, "rdma_ucm"},
		{opChannel, syscall.EACCES, "not allowed"},
		{opBind, syscall.EACCES, "1024"},
		{opBind, syscall.EADDRINUSE, "port space TCP"},
		{opBind, syscall.EADDRNOTAVAIL, "not an address"},
		{opResolveAddr, syscall.ENODEV, "reaches"},
		{opResolveAddr, syscall.ENETUNREACH, "no route"},
		{opResolveAddr, syscall.ETIMEDOUT, "nobody"},
		{opConnect, syscall.ETIMEDOUT, "4791"},
		{opConnect, verbs.ErrDeviceGone, "removed"},
		{opConnect, io.EOF, ""},
	} {
		got := hint(c.op, ib.PortSpaceTCP, c.err)
		if got == "" != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s, %v: %q, want %q in it", c.op, c.err, got, c.want)
		}
	}
}

func TestStatusErrors(t *testing.T) {
	t.Parallel()
	private := []byte("why")
	for _, c := range []struct {
		ev     driver.CMEvent
		ps     ib.PortSpace
		want   error
		reason ib.RejectReason
	}{
		{ev: driver.CMEvent{Type: Established}},
		{ev: driver.CMEvent{Type: AddrError, Status: -int(syscall.ETIMEDOUT)}, want: syscall.ETIMEDOUT},
		{ev: driver.CMEvent{Type: Rejected, Status: 8, Private: private}, reason: ib.RejectInvalidServiceID},
		{ev: driver.CMEvent{Type: Rejected, Status: -int(syscall.ECONNREFUSED)}, want: syscall.ECONNREFUSED}, // iWARP
		{ev: driver.CMEvent{Type: Unreachable, Status: -int(syscall.ETIMEDOUT)}, want: syscall.ETIMEDOUT},
		{ev: driver.CMEvent{Type: Unreachable, Status: 2}, ps: ib.PortSpaceUDP, reason: ib.RejectConsumer}, // P45
		{ev: driver.CMEvent{Type: Unreachable, Status: 1}, ps: ib.PortSpaceUDP, reason: ib.RejectInvalidServiceID},
		{ev: driver.CMEvent{Type: Disconnected, Status: -int(syscall.ETIMEDOUT)}, want: syscall.ETIMEDOUT},
		{ev: driver.CMEvent{Type: Disconnected}},
	} {
		err := statusError(&c.ev, c.ps)
		var rej *RejectError
		switch {
		case c.reason != 0:
			if !errors.As(err, &rej) || rej.Reason != c.reason {
				t.Errorf("%+v: %v, want reason %v", c.ev, err, c.reason)
			} else if string(rej.Private) != string(c.ev.Private) {
				t.Errorf("%+v: private data %q", c.ev, rej.Private)
			}
		case err != c.want:
			t.Errorf("%+v: %v, want %v", c.ev, err, c.want)
		}
	}
}
