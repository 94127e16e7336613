package netio

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// faults gives scripted results to the first system calls; 0 lets one happen.
func faults(script ...syscall.Errno) func(uintptr, []unix.Mmsghdr) (int, syscall.Errno) {
	return func(fd uintptr, h []unix.Mmsghdr) (int, syscall.Errno) {
		if len(script) > 0 {
			e := script[0]
			script = script[1:]
			if e != 0 {
				return 0, e
			}
		}
		return unix.Sendmmsg(fd, h)
	}
}

func TestSendFaults(t *testing.T) {
	t.Parallel()
	const segment, segments = 100, 5
	for _, k := range []struct {
		name     string
		script   []syscall.Errno
		segments int // that the socket offers afterwards
		singles  bool
	}{
		{"interrupted", []syscall.Errno{syscall.EINTR, syscall.EINTR}, maxSegments, false},
		{"no checksum offload", []syscall.Errno{syscall.EIO}, 1, true},
		{"too many segments", []syscall.Errno{syscall.EINVAL}, maxSegments, true},
		{"segments too large", []syscall.Errno{syscall.EMSGSIZE, syscall.EINTR}, maxSegments, true},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			a, b := open(t, loopbacks[0], everything), open(t, loopbacks[0], everything)
			a.write.send = faults(k.script...)
			want := pattern(segment*segments, 0)
			n, err := a.Write([]Message{
				{Buf: want, Segment: segment, Addr: b.LocalAddr()},
				{Buf: want, Segment: segment, Addr: b.LocalAddr()},
			})
			if n != 2 || err != nil {
				t.Fatal(n, err)
			}
			got, ms := collect(t, b, 2*len(want))
			if !bytes.Equal(got, slices.Concat(want, want)) {
				t.Error("other bytes")
			}
			messages := 2
			if k.singles {
				messages = segments + 1 // the second is a train again
				if k.segments == 1 {
					messages = 2 * segments
				}
			}
			if len(ms) != messages {
				t.Errorf("%d messages instead of %d", len(ms), messages)
			}
			if l := a.Limits(); l.Segments != k.segments {
				t.Errorf("%+v", l)
			}
			c := countersOf(a)
			if c.Sent != 2*segments || (c.Fallbacks != 0) != k.singles {
				t.Errorf("%+v", c)
			}
		})
	}
}

func TestSendErrors(t *testing.T) {
	t.Parallel()
	for _, e := range []syscall.Errno{syscall.EPERM, syscall.ENETUNREACH, syscall.ENOBUFS, syscall.EINVAL, syscall.EIO, syscall.EMSGSIZE} {
		a, b := open(t, loopbacks[0], everything), open(t, loopbacks[0], everything)
		a.write.send = faults(e)
		ms := []Message{{Buf: []byte("lost"), Addr: b.LocalAddr()}, {Buf: []byte("next"), Addr: b.LocalAddr()}}
		n, err := a.Write(ms)
		if n != 0 || err != e {
			t.Errorf("%v: %d, %v", e, n, err)
		}
		if n, err = a.Write(ms[n+1:]); n != 1 || err != nil { // as the contract suggests
			t.Fatal(n, err)
		}
		in := room(2, 64)
		if n, err := b.Read(in); n != 1 || err != nil || string(in[0].Buf) != "next" {
			t.Error(n, err)
		}
	}
}

// TestSendPartly: the system takes fewer messages than it was given.
func TestSendPartly(t *testing.T) {
	t.Parallel()
	a, b := open(t, loopbacks[0], everything), open(t, loopbacks[0], everything)
	calls := 0
	a.write.send = func(fd uintptr, h []unix.Mmsghdr) (int, syscall.Errno) {
		calls++
		return unix.Sendmmsg(fd, h[:1])
	}
	out := []Message{
		{Buf: pattern(500, 1), Segment: 100, Addr: b.LocalAddr()},
		{Buf: nil, Addr: b.LocalAddr()},
		{Buf: pattern(100*100, 2), Segment: 100, Addr: b.LocalAddr()},
		{Buf: pattern(1, 3), Segment: 100, Addr: b.LocalAddr()},
	}
	if n, err := a.Write(out); n != len(out) || err != nil {
		t.Fatal(n, err)
	}
	if calls != 5 {
		t.Errorf("%d calls", calls)
	}
	got, ms := collect(t, b, 500+10000+1)
	if !bytes.Equal(got, slices.Concat(out[0].Buf, out[2].Buf, out[3].Buf)) || len(ms) != 5 || len(ms[1].Buf) != 0 {
		t.Errorf("%d messages", len(ms))
	}
}

// TestSendWaits: a full buffer makes Write wait until the poller says that there is
// room. It tries twice before: the second time because there may have been room before the
// poller was asked.
func TestSendWaits(t *testing.T) {
	t.Parallel()
	a, b := open(t, loopbacks[0], everything), open(t, loopbacks[0], everything)
	tries := 0
	a.write.send = func(fd uintptr, h []unix.Mmsghdr) (int, syscall.Errno) {
		switch tries++; tries {
		case 1:
			return 0, syscall.EAGAIN
		case 2:
		default:
			return unix.Sendmmsg(fd, h)
		}
		// Memory that comes free is what wakes the writer, so a datagram goes out.
		if n, e := unix.Sendmmsg(fd, h[:1]); n != 1 || e != 0 {
			t.Error(n, e)
		}
		return 0, syscall.EAGAIN
	}
	if n, err := a.Write([]Message{{Buf: []byte("x"), Addr: b.LocalAddr()}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if got, _ := collect(t, b, 2); string(got) != "xx" {
		t.Errorf("%q", got)
	}
	if c := countersOf(a); c.Waits != 1 {
		t.Errorf("%+v", c)
	}
}

func TestCloseWakesWrite(t *testing.T) {
	t.Parallel()
	a := open(t, loopbacks[0], everything)
	full, done := make(chan struct{}), make(chan error)
	tries := 0
	a.write.send = func(uintptr, []unix.Mmsghdr) (int, syscall.Errno) {
		if tries++; tries == 2 { // the next one is when the poller says so
			close(full)
		}
		return 0, syscall.EAGAIN
	}
	go func() {
		n, err := a.Write([]Message{{Buf: []byte("x"), Addr: a.LocalAddr()}})
		if n != 0 {
			t.Error(n)
		}
		done <- err
	}()
	<-full
	a.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestReceiveFaults(t *testing.T) {
	t.Parallel()
	a := open(t, loopbacks[0], everything)
	script := []syscall.Errno{syscall.EINTR, syscall.ECONNREFUSED, syscall.EHOSTUNREACH}
	a.read.recv = func(fd uintptr, h []unix.Mmsghdr) (int, syscall.Errno) {
		if len(script) > 0 {
			e := script[0]
			script = script[1:]
			return 0, e
		}
		return unix.Recvmmsg(fd, h)
	}
	if _, err := a.Write([]Message{{Buf: []byte("x"), Addr: a.LocalAddr()}}); err != nil {
		t.Fatal(err)
	}
	in := room(1, 64)
	if n, err := a.Read(in); n != 1 || err != nil || len(script) != 0 {
		t.Fatal(n, err, script)
	}
	script = []syscall.Errno{syscall.ENOMEM}
	if n, err := a.Read(in); n != 0 || err != syscall.ENOMEM {
		t.Fatal(n, err)
	}
}
