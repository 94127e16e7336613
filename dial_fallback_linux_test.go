package rdma_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// fullBacklog gives the address of a TCP listener that answers no more requests, as its queue
// is full.
func fullBacklog(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	err = errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0))
	if err != nil {
		t.Fatal(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: sa.(*syscall.SockaddrInet4).Port}
	c, err := net.Dial("tcp", at.String()) // there is room for one
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return at.String()
}

// TestC300_DialErrors: where neither RDMA nor TCP is to be had the error is that of TCP, the
// last that was tried, as net.Dial would give it. It names RDMA's as well, and that RDMA was
// given little time is no deadline of the program.
func TestC300_DialErrors(t *testing.T) {
	rdmatest.CheckLeaks(t)
	f := rdmatest.NewFabric(t, 0)
	client := f.Host(netip.MustParseAddr("127.0.0.2"))
	if _, err := f.ListenPacket(netip.MustParseAddrPort("127.0.0.1:4791")); err != nil { // silent
		t.Fatal(err)
	}
	silent := fullBacklog(t)
	const none = "127.0.0.1:1" // nobody listens
	all := []error{syscall.ECONNREFUSED, context.Canceled, context.DeadlineExceeded, os.ErrDeadlineExceeded}
	var fell error
	for _, x := range []struct {
		what, to  string
		cancel    bool // in the middle of TCP
		text      string
		is        []error
		isTimeout bool
	}{
		{"TCP is refused", none, false, "connection refused", []error{syscall.ECONNREFUSED}, false},
		{"TCP is silent", silent, false, "i/o timeout", []error{context.DeadlineExceeded, os.ErrDeadlineExceeded}, true},
		{"cancelled", silent, true, "operation was canceled", []error{context.Canceled}, false},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		fell = nil
		cfg := &rdma.Config{Provider: client, Fallback: rdma.TCPFallback, Trace: &rdma.Trace{FellBack: func(_ string, err error) {
			fell = err
			if x.cancel {
				cancel()
			}
		}}}
		_, err := (&rdma.Dialer{Config: cfg, Timeout: 1500 * time.Millisecond}).DialContext(ctx, "rdma", x.to)
		cancel()
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "dial" || op.Net != "rdma" || op.Addr.String() != x.to || op.Timeout() != x.isTimeout {
			t.Errorf("%s: %v, a time-out %v", x.what, err, op != nil && op.Timeout())
		}
		for _, target := range all {
			if errors.Is(err, target) != slices.Contains(x.is, target) {
				t.Errorf("%s: %v is %v: %v", x.what, err, target, errors.Is(err, target))
			}
		}
		// What failed first comes last, and says what it is of.
		first, rest, _ := strings.Cut(err.Error(), "over RDMA: ")
		if !strings.Contains(first, x.text) || !x.cancel && !strings.Contains(rest, "no answer") {
			t.Errorf("%s: %v", x.what, err)
		}
		if !errors.Is(fell, syscall.ETIMEDOUT) || errors.Is(fell, context.DeadlineExceeded) {
			t.Errorf("%s: it fell back because of %v", x.what, fell)
		}
	}
}
