package rdma_test

import (
	"errors"
	"io"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestC275_NoRNR: a peer that does not read, and then reads slowly, stops the writer at
// its window, and no message ever meets an empty receive queue.
func TestC275_NoRNR(t *testing.T) {
	pairs(t, func(t *testing.T, l *rig, s, c *rdma.Conn) {
		naks := rnrNAKs(t, l)
		total := l.times(6<<20, 2<<20)
		written := make(chan error, 1)
		go func() {
			var err error
			for at := 0; at < total && err == nil; at += 1000 {
				_, err = c.Write(pattern(min(1000, total-at), at))
			}
			c.CloseWrite()
			written <- err
		}()
		time.Sleep(l.of(time.Minute, 0))
		l.comes(t, "the writer waits for the peer", func() bool { return asleep(c, 1)() && c.Stats().CreditStalls > 0 })
		select {
		case err := <-written:
			t.Fatalf("the writer was not stopped: %v", err)
		default:
		}
		got := 0
		b := make([]byte, 7000)
		for {
			n, err := s.Read(b)
			if want := pattern(n, got); string(b[:n]) != string(want) {
				t.Fatalf("wrong bytes at %d", got)
			}
			got += n
			if got%70000 < 7000 {
				time.Sleep(time.Millisecond)
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := <-written; err != nil || got != total {
			t.Error(got, err)
		}
		if n := naks(); n > 0 {
			t.Errorf("%d RNR NAKs", n)
		}
	})
}

// rnrNAKs counts the RNR NAKs from now on: those on the fabric, or by the counters that the
// kernel's devices have of them, sent and received.
func rnrNAKs(t *testing.T, l *rig) (naks func() int) {
	t.Helper()
	if l.fabric != nil {
		n := 0
		l.fabric.Rule(rdmatest.Rule{Opcodes: []uint8{rdmatest.OpAcknowledge}, See: func(d rdmatest.Datagram) {
			if len(d.Payload) > 12 && d.Payload[12]>>5 == 1 { // AETH, RNR NAK
				n++
			}
		}})
		return func() int { return n }
	}
	count := func() (n int) {
		files, _ := filepath.Glob("/sys/class/infiniband/*/ports/1/hw_counters/*_rnr_err")
		if len(files) < 2 {
			t.Fatalf("there are no counters of RNR NAKs: %q", files)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			x, err := strconv.Atoi(strings.TrimSpace(string(b)))
			if err != nil {
				t.Fatal(err)
			}
			n += x
		}
		return n
	}
	before := count()
	return func() int { return count() - before }
}

// TestC284_DialTimeouts: kept to the bound, although the connection manager would take
// minutes; the largest Duration does not overflow.
func TestC284_DialTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := onFabric(t)
		if _, err := p.fabric.ListenPacket(netip.MustParseAddrPort("10.0.0.9:4791")); err != nil {
			t.Fatal(err)
		}
		for _, d := range []time.Duration{1, time.Millisecond, 100 * time.Millisecond, 3 * time.Second, math.MaxInt64} {
			start := time.Now()
			_, err := (&rdma.Dialer{Timeout: d, Config: &rdma.Config{Provider: p.client}}).Dial("rdma", "10.0.0.9:7471")
			took := time.Since(start)
			if d == math.MaxInt64 {
				isErr(t, "the largest", err, syscall.ETIMEDOUT)
				continue
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) || took > d+50*time.Millisecond || took < d {
				t.Errorf("%v: %v after %v", d, err, took)
			}
		}
		// The earlier of both counts.
		start := time.Now()
		(&rdma.Dialer{Timeout: time.Hour, Deadline: start.Add(time.Second), Config: &rdma.Config{Provider: p.client}}).Dial("rdma", "10.0.0.9:7471")
		if took := time.Since(start); took != time.Second {
			t.Error("deadline:", took)
		}
	})
}

// TestC289_Ownership: the memory of a call is the caller's when it returns, also after a
// time-out. Between kernel's devices the network delays what the client sends.
func TestC289_Ownership(t *testing.T) {
	pairs(t, func(t *testing.T, l *rig, s, c *rdma.Conn) {
		release := func() {}
		if l.fabric != nil {
			f := l.fabric.Rule(rdmatest.Rule{From: clientAddr, Hold: true})
			release = func() { f.Release(); f.Remove() }
		}
		p := pattern(50000, 5)
		writes(t, c, p)
		clear(p)
		b := make([]byte, 60000)
		s.SetReadDeadline(time.Now().Add(time.Millisecond))
		n, err := s.Read(b)
		if n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(n, err)
		}
		release()
		time.Sleep(l.of(10*time.Second, 0))
		s.SetReadDeadline(time.Time{})
		reads(t, s, pattern(50000, 5))
		for _, x := range b {
			if x != 0 {
				t.Fatal("a late write into the buffer of a Read that had ended")
			}
		}
	})
}
