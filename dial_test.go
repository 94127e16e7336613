package rdma_test

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
)

// dialCase is a dial that must fail.
type dialCase struct {
	name, network, address string
	timeout                time.Duration
	local                  net.Addr
	is                     []error
	as                     any
	isTimeout              bool
}

// try holds the error against what package net would give: a *net.OpError.
func (c *dialCase) try(t *testing.T, p verbs.Provider, late time.Duration) {
	t.Helper()
	d := rdma.Dialer{Timeout: c.timeout, LocalAddr: c.local, Config: &rdma.Config{Provider: p}}
	start := time.Now()
	conn, err := d.Dial(c.network, c.address)
	took := time.Since(start)
	var op *net.OpError
	if conn != nil || !errors.As(err, &op) {
		t.Errorf("%s: %v, %v", c.name, conn, err)
		return
	}
	if op.Op != "dial" || op.Net != c.network {
		t.Errorf("%s: %+v", c.name, op)
	}
	for _, want := range c.is {
		if !errors.Is(err, want) {
			t.Errorf("%s: %v is not %v", c.name, err, want)
		}
		if op.Addr == nil || op.Addr.String() != c.address {
			t.Errorf("%s: address %v", c.name, op.Addr)
		}
	}
	if c.as != nil && !errors.As(err, c.as) {
		t.Errorf("%s: %v is no %T", c.name, err, c.as)
	}
	if op.Timeout() != c.isTimeout {
		t.Errorf("%s: %v: timeout %v", c.name, err, op.Timeout())
	}
	if c.timeout > 0 && c.timeout < math.MaxInt64 && took > c.timeout+late {
		t.Errorf("%s: took %v", c.name, took)
	}
}

// TestC283_DialErrors: each is a *net.OpError with what package net would have in it.
func TestC283_DialErrors(t *testing.T) {
	if p := onKernel(t); p != nil {
		kernelDialErrors(t, p)
		return
	}
	synctest.Test(t, func(t *testing.T) {
		p := onFabric(t)
		ln := (&rig{place: p}).listen(t) // so that the host is there
		defer ln.Close()
		silent := netip.MustParseAddr("10.0.0.9")
		if _, err := p.fabric.ListenPacket(netip.AddrPortFrom(silent, 4791)); err != nil {
			t.Fatal(err)
		}
		var unknown net.UnknownNetworkError
		var addr *net.AddrError
		for _, c := range []dialCase{
			{name: "nobody listens", network: "rdma", address: "10.0.0.1:7471", is: []error{syscall.ECONNREFUSED}},
			{name: "port 0", network: "rdma", address: "10.0.0.1:0", is: []error{syscall.ECONNREFUSED}},
			{name: "silent, with a time-out", network: "rdma", address: "10.0.0.9:7471", timeout: 100 * time.Millisecond,
				is: []error{os.ErrDeadlineExceeded, context.DeadlineExceeded}, isTimeout: true},
			{name: "silent", network: "rdma4", address: "10.0.0.9:7471", is: []error{syscall.ETIMEDOUT}, isTimeout: true},
			{name: "one nanosecond", network: "rdma", address: "10.0.0.9:7471", timeout: 1, is: []error{os.ErrDeadlineExceeded}, isTimeout: true},
			{name: "negative", network: "rdma", address: "10.0.0.9:7471", timeout: -1, is: []error{os.ErrDeadlineExceeded}, isTimeout: true},
			{name: "for ever", network: "rdma", address: "10.0.0.1:7471", timeout: math.MaxInt64, is: []error{syscall.ECONNREFUSED}},
			{name: "multicast", network: "rdma", address: "224.0.0.1:7471", is: []error{syscall.ENETUNREACH}},
			{name: "network", network: "tcp", address: "10.0.0.1:7471", as: &unknown},
			{name: "family", network: "rdma6", address: "10.0.0.1:7471", as: &addr},
			{name: "no port", network: "rdma", address: "10.0.0.1", as: &addr},
			{name: "foreign local address", network: "rdma", address: "10.0.0.1:7471", local: rdma.Addr{AddrPort: netip.MustParseAddrPort("10.0.0.77:0")},
				is: []error{syscall.EADDRNOTAVAIL}},
			{name: "local address of another family", network: "rdma", address: "10.0.0.1:7471", local: &net.TCPAddr{IP: net.IPv6loopback}, as: &addr},
		} {
			c.try(t, p.client, 50*time.Millisecond)
		}
	})
}

// kernelDialErrors are those of a kernel: no route, and nobody at an address of the network
// (the lab's is 10.9.0.0/24).
func kernelDialErrors(t *testing.T, p *place) {
	ln := (&rig{place: p}).listen(t)
	here := ln.Addr().String()
	ln.Close()
	var addr *net.AddrError
	for _, c := range []dialCase{
		{name: "nobody listens any more", network: "rdma", address: here, is: []error{syscall.ECONNREFUSED}},
		{name: "port 0", network: "rdma", address: "10.9.0.2:0", is: []error{syscall.ECONNREFUSED}},
		{name: "no route", network: "rdma", address: "192.0.2.1:7471", is: []error{syscall.ENETUNREACH}},
		{name: "multicast", network: "rdma", address: "224.0.0.1:7471", is: []error{syscall.ENETUNREACH}},
		{name: "nobody is there", network: "rdma4", address: "10.9.0.99:7471", timeout: 100 * time.Millisecond,
			is: []error{os.ErrDeadlineExceeded, context.DeadlineExceeded}, isTimeout: true},
		{name: "one nanosecond", network: "rdma", address: here, timeout: 1, is: []error{os.ErrDeadlineExceeded}, isTimeout: true},
		{name: "family", network: "rdma6", address: here, as: &addr},
		{name: "foreign local address", network: "rdma", address: here, local: rdma.Addr{AddrPort: netip.MustParseAddrPort("10.9.0.77:0")},
			is: []error{syscall.EADDRNOTAVAIL}},
	} {
		c.try(t, p.client, 2*time.Second)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		time.Sleep(100 * time.Millisecond) // not to wait for anything: the address has no answer for seconds
		cancel()
	}()
	start := time.Now()
	_, err := (&rdma.Dialer{Config: &rdma.Config{Provider: p.client}}).DialContext(ctx, "rdma", "10.9.0.97:7471")
	var op *net.OpError
	if !errors.Is(err, context.Canceled) || !errors.As(err, &op) || op.Timeout() || time.Since(start) > 2*time.Second {
		t.Errorf("cancelled: %v after %v", err, time.Since(start))
	}
}

// A context ends a dial before and during, and not after.
func TestC283_DialContext(t *testing.T) {
	p := onFabric(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := rdma.Dialer{Config: &rdma.Config{Provider: p.client}}
	if _, err := d.DialContext(ctx, "rdma", "10.0.0.1:7471"); !errors.Is(err, context.Canceled) {
		t.Errorf("before: %v", err)
	}
	if _, err := p.fabric.ListenPacket(netip.MustParseAddrPort("10.0.0.9:4791")); err != nil {
		t.Fatal(err)
	}
	resolved := make(chan struct{})
	ctx, cancel = context.WithCancel(t.Context())
	d.Config.Trace = &rdma.Trace{Resolved: func(netip.AddrPort, string, time.Duration, error) { close(resolved) }}
	go func() { <-resolved; cancel() }()
	_, derr := d.DialContext(ctx, "rdma", "10.0.0.9:7471")
	var op *net.OpError
	if !errors.Is(derr, context.Canceled) || !errors.As(derr, &op) || op.Timeout() {
		t.Errorf("during: %v", derr)
	}

	r := &rig{place: p}
	ln := r.listen(t)
	defer ln.Close()
	ctx, cancel = context.WithCancel(t.Context())
	c, err := r.dialer().DialContext(ctx, "rdma", ln.Addr().String())
	cancel()
	sc, serr := ln.Accept()
	if err != nil || serr != nil {
		t.Fatal(err, serr)
	}
	defer closeBoth(c, sc)
	go c.Write([]byte("after"))
	b := make([]byte, 9)
	if n, err := sc.Read(b); string(b[:n]) != "after" {
		t.Errorf("after: %q, %v", b[:n], err)
	}
}

// A dialer with the fallback takes TCP where nobody listens over RDMA, and says why.
func TestC300_DialTakesTCP(t *testing.T) {
	rdmatest.CheckLeaks(t)
	p := onLoopback(t)
	tl, err := net.Listen("tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	defer tl.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := tl.Accept()
		accepted <- c
	}()
	var fell error
	cfg := &rdma.Config{Provider: p.client, Fallback: rdma.TCPFallback, Trace: &rdma.Trace{FellBack: func(_ string, why error) { fell = why }}}
	c, err := (&rdma.Dialer{Config: cfg, Timeout: 10 * time.Second}).Dial("rdma", tl.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s := <-accepted
	defer closeBoth(c, s)
	tr := c.(*rdma.Conn).Transport()
	if tr.Kind != "tcp" || tr.Why == "" || !errors.Is(fell, syscall.ECONNREFUSED) {
		t.Errorf("%+v, %v", tr, fell)
	}
	if c.LocalAddr().Network() != "tcp" || c.RemoteAddr().String() != tl.Addr().String() {
		t.Error(c.LocalAddr(), c.RemoteAddr())
	}
	// Where neither is to be had, the error tells of both.
	tl.Close()
	_, err = (&rdma.Dialer{Config: cfg}).Dial("rdma", tl.Addr().String())
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
}

// One listener serves both networks on one port.
func TestC300_ListenBoth(t *testing.T) {
	rdmatest.CheckLeaks(t)
	r := &rig{place: onLoopback(t), server: rdma.Config{Fallback: rdma.TCPFallback}}
	ln := r.listen(t)
	defer ln.Close()
	s, c := r.connect(t, ln)
	defer closeBoth(s, c)
	tc, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ts, err := ln.AcceptRDMA()
	if err != nil {
		t.Fatal(err)
	}
	defer closeBoth(ts, tc)
	for _, x := range []struct {
		a, b net.Conn
		kind string
	}{{s, c, "rdma"}, {ts, tc, "tcp"}} {
		if got := x.a.(*rdma.Conn).Transport(); got.Kind != x.kind {
			t.Errorf("%+v, want %s", got, x.kind)
		}
		go x.a.Write([]byte("x"))
		if n, err := x.b.Read(make([]byte, 8)); n != 1 || err != nil {
			t.Error(x.kind, n, err)
		}
	}
}

// A host without RDMA listens on TCP alone, and says so.
func TestC300_ListenWithoutRDMA(t *testing.T) {
	p := onLoopback(t)
	p.server.(interface{ RemoveDevice() }).RemoveDevice()
	r := &rig{place: p}
	if _, err := (&rdma.ListenConfig{Config: &rdma.Config{Provider: p.server}}).Listen(t.Context(), "rdma", p.address); err == nil {
		t.Error("without fallback: no error")
	}
	var fell error
	r.server = rdma.Config{Fallback: rdma.TCPFallback, Trace: &rdma.Trace{FellBack: func(_ string, why error) { fell = why }}}
	ln := r.listen(t)
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ln.AcceptRDMA()
	if err != nil {
		t.Fatal(err)
	}
	defer closeBoth(s, c)
	if tr := s.Transport(); tr.Kind != "tcp" || tr.Why == "" || fell == nil {
		t.Errorf("%+v, %v", tr, fell)
	}
}
