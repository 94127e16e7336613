package rdma_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/stream"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// Traps of rsockets that concern connections and not the machine, by their numbers in
// docs/stream-protocol.md, part 4.

// TestTrap01_LingerEnds: when the time of Close is over the last word goes, and the connection
// is not ended before it has arrived, also if its first packet is lost.
func TestTrap01_LingerEnds(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		s, c := l.pair(t)
		defer s.Close()
		c.SetWriteDeadline(time.Now().Add(time.Second))
		c.Write(make([]byte, 4<<20)) // its reader stops it
		time.Sleep(10 * time.Second)
		c.SetLinger(1)
		start := time.Now()
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		time.Sleep(time.Second - time.Millisecond)
		synctest.Wait()
		lost := l.fabric.Rule(rdmatest.Rule{From: clientAddr, Nth: 1, Drop: true})
		time.Sleep(2 * time.Millisecond)
		if lost.Hits() != 1 {
			t.Errorf("%d packets were lost", lost.Hits())
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("Close took %v", took)
		}
		n, err := io.Copy(io.Discard, s)
		var why *stream.PeerError
		if l.client.Compatible {
			if err != nil { // DISCONNECT is all that rsockets has
				t.Errorf("%d bytes, %v", n, err)
			}
		} else if !errors.As(err, &why) || why.Reason != stream.Lingered {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
}

// TestTrap13_RTUAtOnce: the dialer sends its RTU as soon as it has the REP, though its
// program does nothing then; and what it writes is there when the other program accepts,
// be that hours later.
func TestTrap13_RTUAtOnce(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		const reply, ready = 0x13, 0x14
		var mu sync.Mutex
		var replied, told time.Time
		note := func(at *time.Time) func(rdmatest.Datagram) {
			return func(rdmatest.Datagram) {
				mu.Lock()
				defer mu.Unlock()
				*at = time.Now()
			}
		}
		l.fabric.Rule(rdmatest.Rule{CM: reply, See: note(&replied)})
		l.fabric.Rule(rdmatest.Rule{CM: ready, From: clientAddr, See: note(&told)})
		busy := make(chan struct{})
		l.client.Trace = &rdma.Trace{Connected: func(*rdma.Conn, time.Duration, error) { <-busy }}
		ln := l.listen(t)
		defer ln.Close()
		dialled := make(chan net.Conn)
		go func() {
			c, err := l.dialer().Dial("rdma", ln.Addr().String())
			if err != nil {
				t.Error(err)
			}
			dialled <- c
		}()
		time.Sleep(time.Hour)
		synctest.Wait()
		mu.Lock()
		if took := told.Sub(replied); replied.IsZero() || told.IsZero() || took > 5*time.Millisecond {
			t.Errorf("REP at %v, RTU at %v", replied, told)
		}
		mu.Unlock()
		close(busy)
		c := <-dialled
		writes(t, c, []byte("early"))
		time.Sleep(time.Hour)
		s, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		reads(t, s, []byte("early"))
		closeBoth(s, c)
	})
}

// TestTrap14_ManyInOneProcess: what librdmacm 44 cannot hold, ours can: more than seven
// listeners and more than five accepted connections in one process.
func TestTrap14_ManyInOneProcess(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		var lns []*rdma.Listener
		var conns [][2]*rdma.Conn
		for range 16 {
			ln := l.listen(t)
			lns = append(lns, ln)
			for range 4 {
				s, c := l.connect(t, ln)
				conns = append(conns, [2]*rdma.Conn{s, c})
			}
		}
		for i, x := range conns {
			writes(t, x[0], []byte(fmt.Sprint("to ", i)))
			writes(t, x[1], []byte(fmt.Sprint("from ", i)))
		}
		for i, x := range conns {
			reads(t, x[1], []byte(fmt.Sprint("to ", i)))
			reads(t, x[0], []byte(fmt.Sprint("from ", i)))
			closeBoth(x[0], x[1])
		}
		for _, ln := range lns {
			ln.Close()
		}
	})
}

// TestTrap14_NoSilentTCP: the preload library of C takes TCP in silence if RDMA fails. Ours
// takes none unless it was allowed, and then it says so, each time.
func TestTrap14_NoSilentTCP(t *testing.T) {
	p := onLoopback(t)
	tl, err := net.Listen("tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	defer tl.Close()
	accepted := make(chan net.Conn, 4)
	go func() {
		for {
			c, err := tl.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	cfg := &rdma.Config{Provider: p.client}
	d := &rdma.Dialer{Config: cfg, Timeout: 30 * time.Second}
	if c, err := d.Dial("rdma", tl.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v, %v", c, err)
	}
	fell := 0
	cfg.Fallback, cfg.Trace = rdma.TCPFallback, &rdma.Trace{FellBack: func(string, error) { fell++ }}
	c, err := d.Dial("rdma", tl.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if tr := c.(*rdma.Conn).Transport(); tr.Kind != "tcp" || tr.Why == "" || fell != 1 {
		t.Errorf("%+v, told %d times", tr, fell)
	}
	(<-accepted).Close()
	c.Close()
	tl.Close()
	if x := <-accepted; x != nil {
		t.Error("a TCP connection that nobody had allowed")
	}
}

// TestTrap16_CutIsNoEnd: a stream that is cut is no success to its reader: it gets an error
// behind the data and no end of file, so that a program need not count. (C's examples exit
// with 0 all the same; the tests of the lab compare every byte.)
func TestTrap16_CutIsNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &rig{place: onFabric(t)}
		s, c := l.pair(t)
		const all = 3 << 20
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write(pattern(all, 1))
			wrote <- err
		}()
		time.Sleep(time.Minute) // the window has stopped the writer
		c.SetLinger(0)
		c.Close()
		isErr(t, "Write", <-wrote, net.ErrClosed)
		got, err := io.ReadAll(s)
		if len(got) == 0 || len(got) >= all || !bytes.Equal(got, pattern(len(got), 1)) {
			t.Errorf("%d bytes, those that were written %v", len(got), bytes.Equal(got, pattern(len(got), 1)))
		}
		isErr(t, "Read", err, syscall.ECONNRESET)
		s.Close()
	})
}

// TestTrap17_LiveBeforeAndAfter: all memory that the peer may write, and the receives, are
// there before REQ and REP leave, and the memory is there until the queue pair is gone.
func TestTrap17_LiveBeforeAndAfter(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		var sides [2]faults
		l.place.server, l.place.client = &faulty{l.place.server, &sides[0]}, &faulty{l.place.client, &sides[1]}
		s, c := l.pair(t)
		go func() {
			c.Write(make([]byte, 5<<20))
			c.CloseWrite()
		}()
		if n, err := io.Copy(io.Discard, s); n != 5<<20 || err != nil {
			t.Fatal(n, err)
		}
		closeBoth(s, c)
		time.Sleep(time.Minute)
		for i, leaves := range []string{"accept", "connect"} {
			f := &sides[i]
			f.mu.Lock()
			log := f.log
			f.mu.Unlock()
			at := func(what string) int { return slices.IndexFunc(log, func(x string) bool { return x == what }) }
			gone := at("close qp")
			sent, posted := at(leaves), at("post recv")
			if posted < 0 || sent < posted || gone < sent {
				t.Errorf("%s: receives posted at %d, sent at %d, queue pair closed at %d: %q", leaves, posted, sent, gone, log)
			}
			// Who dials does not know what the peer is, so it has a ring for either.
			exposed := slices.IndexFunc(log, func(x string) bool { return strings.HasPrefix(x, "expose") })
			if l.client.Compatible || leaves == "connect" {
				if exposed < 0 || exposed > sent {
					t.Errorf("%s: memory for the peer at %d, sent at %d: %q", leaves, exposed, sent, log)
				}
			} else if exposed >= 0 {
				t.Errorf("%s: between two Verbenas memory is exposed: %q", leaves, log)
			}
			if !l.client.Compatible {
				continue
			}
			first := log[exposed]
			if took := slices.Index(log, "hide"+strings.TrimPrefix(first, "expose")); took < gone {
				t.Errorf("%s: the ring of the hello is gone at %d, the queue pair at %d: %q", leaves, took, gone, log)
			}
		}
	})
}

// TestC332_LeastPrivilege: of a stream's memory a peer may write its ring and nothing else, and
// may read none; and its queue pair lets it do no more.
func TestC332_LeastPrivilege(t *testing.T) {
	together(t)
	each(t, func(t *testing.T, l *rig) {
		var sides [2]faults
		l.place.server, l.place.client = &faulty{l.place.server, &sides[0]}, &faulty{l.place.client, &sides[1]}
		s, c := l.pair(t)
		defer closeBoth(s, c)
		go func() {
			c.Write(make([]byte, 5<<20))
			c.CloseWrite()
		}()
		if n, err := io.Copy(io.Discard, s); n != 5<<20 || err != nil {
			t.Fatal(n, err)
		}
		for i, leaves := range []string{"accept", "connect"} {
			f := &sides[i]
			f.mu.Lock()
			log := slices.Clone(f.log)
			f.mu.Unlock()
			regions, rings, last := 0, 0, ""
			for _, x := range log {
				switch what, access, _ := strings.Cut(x, " "); {
				case what == "region" && access == ib.LocalWrite.String():
					regions++
				case what == "region" && access == (ib.LocalWrite|ib.RemoteWrite).String():
					rings++
				case what == "region":
					t.Errorf("%s: a region with %s", leaves, access)
				case what == "access":
					last = access
				}
			}
			// Who dials does not know what the peer is, so it has a ring for either.
			if want := l.client.Compatible || leaves == "connect"; regions == 0 || rings > 0 != want {
				t.Errorf("%s: %d regions of its own, %d rings, want some and %v: %q", leaves, regions, rings, want, log)
			}
			if last != ib.RemoteWrite.String() {
				t.Errorf("%s: the queue pair has %q, want only RemoteWrite: %q", leaves, last, log)
			}
		}
	})
}
