package rdma_test

import (
	"errors"
	"io"
	"math"
	"net/netip"
	"os"
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
		naks := 0
		l.fabric.Rule(rdmatest.Rule{Opcodes: []uint8{rdmatest.OpAcknowledge}, See: func(d rdmatest.Datagram) {
			if len(d.Payload) > 12 && d.Payload[12]>>5 == 1 { // AETH, RNR NAK
				naks++
			}
		}})
		const total = 6 << 20
		written := make(chan error, 1)
		go func() {
			var err error
			for at := 0; at < total && err == nil; at += 1000 {
				_, err = c.Write(pattern(min(1000, total-at), at))
			}
			c.CloseWrite()
			written <- err
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
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
		if naks > 0 {
			t.Errorf("%d RNR NAKs", naks)
		}
	})
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
// time-out.
func TestC289_Ownership(t *testing.T) {
	pairs(t, func(t *testing.T, l *rig, s, c *rdma.Conn) {
		f := l.fabric.Rule(rdmatest.Rule{From: clientAddr, Hold: true})
		p := pattern(50000, 5)
		writes(t, c, p)
		clear(p)
		b := make([]byte, 60000)
		s.SetReadDeadline(time.Now().Add(time.Millisecond))
		n, err := s.Read(b)
		if n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(n, err)
		}
		f.Release()
		f.Remove()
		time.Sleep(10 * time.Second)
		for _, x := range b {
			if x != 0 {
				t.Fatal("a late write into the buffer of a Read that had ended")
			}
		}
		s.SetReadDeadline(time.Time{})
		reads(t, s, pattern(50000, 5))
	})
}
