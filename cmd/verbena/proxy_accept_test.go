package main

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// failingListener gives one error after the other.
type failingListener struct {
	net.Listener
	errs []error
}

func (l *failingListener) Accept() (net.Conn, error) {
	err := l.errs[0]
	l.errs = l.errs[1:]
	return nil, err
}

// TestProxyAcceptErrors: errors of accept that pass do not end a proxy, and are told; the
// end of its listener does, and so does any error of one of RDMA, which waits by itself.
func TestProxyAcceptErrors(t *testing.T) {
	for network, want := range map[string]time.Duration{"tcp": 155 * time.Millisecond, "rdma": 0} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			p := newProxy(&proxyOptions{listen: endpointURL{network, ":1"}, max: 1}, &out)
			ln := &failingListener{errs: []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EPERM, errors.New("odd"), net.ErrClosed}}
			last := net.ErrClosed
			if network == "rdma" {
				last = verbs.ErrDeviceGone
				ln.errs = []error{last}
			}
			start := time.Now()
			if err := p.accept(t.Context(), ln); err != last {
				t.Errorf("%s: %v", network, err)
			}
			if took := time.Since(start); took != want || len(ln.errs) != 0 {
				t.Errorf("%s: ended after %v, want %v, with %d errors left", network, took, want, len(ln.errs))
			}
			if told := strings.Contains(out.String(), syscall.EMFILE.Error()); told != (network == "tcp") {
				t.Errorf("%s: said %q", network, out.String())
			}
		})
	}
}
