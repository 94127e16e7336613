package stream

import (
	"errors"
	"io"
	"testing"
	"time"
)

// both runs a test in both modes.
func both(t *testing.T, f func(t *testing.T, m Mode)) {
	t.Parallel()
	for _, m := range []Mode{Compatible, Verbena} {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			f(t, m)
		})
	}
}

// count notes the messages of a side, by what they are.
func (s *side) count() map[string]int {
	n := map[string]int{}
	s.log = func(op *wireOp) {
		if s.e.Mode() == Verbena {
			n[vNames[vword(op.Imm).kind()]]++
		} else {
			n[[]string{"DATA", "1", "2", "3", "CREDIT", "5", "IOMAP", "CONTROL"}[word(op.Imm).op()]]++
		}
	}
	return n
}

// TestPingPong: small messages there and back are one message each; credits travel with
// them or, in compatible mode, with one word in many; and few completions are asked for.
func TestPingPong(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		a, b, _ := newPair(t, defaultPair(m), 1)
		settle(a, b)
		ca, cb := a.count(), b.count()
		sa := a.signals
		const rounds = 1000
		for i := range rounds {
			for j, s := range []*side{a, b} {
				p := []*side{b, a}[j]
				s.toWrite += 64
				s.write(64)
				settle(a, b)
				p.doRead(64)
				if p.read != 64*(i+1) {
					t.Fatalf("round %d: %s read %d", i, p.name, p.read)
				}
			}
		}
		if ca["DATA"] != rounds || cb["DATA"] != rounds {
			t.Errorf("messages %v, %v", ca, cb)
		}
		if m == Verbena && len(ca)+len(cb) != 2 {
			t.Errorf("more than data: %v, %v", ca, cb)
		}
		if m == Compatible && ca["CREDIT"] > rounds/16 {
			t.Errorf("messages %v, %v", ca, cb)
		}
		if n := a.signals - sa; n > rounds/4 {
			t.Errorf("%d completions for %d messages", n, rounds)
		}
	})
}

// TestLargeWrite: once the buffers are large, a write of 64 KiB is one message, or two.
func TestLargeWrite(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		c := defaultPair(m)
		if m == Compatible {
			c.recvSize = [2]int{4096, 4096}
			c.recvCount = [2]int{4, 4}
		}
		a, b, _ := newPair(t, c, 1)
		const size = 64 << 10
		run := func(n int) int {
			before := a.count()
			for range n {
				a.toWrite += size
				for a.written < a.toWrite {
					a.write(size)
					settle(a, b)
					b.doRead(1 << 20)
				}
			}
			return before["DATA"]
		}
		run(20)
		if b.regions != 1 {
			t.Fatalf("%d regions lent", b.regions)
		}
		// In compatible mode a message ends where a buffer does.
		if n := run(100); n != 100 && (m == Verbena || n > 200) {
			t.Errorf("%d messages for 100 writes", n)
		}
	})
}

// TestCoalesce: small writes travel together while an earlier one is on its way, and at
// once otherwise, or with NoDelay.
func TestCoalesce(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		c := defaultPair(m)
		a, b, _ := newPair(t, c, 1)
		settle(a, b)
		n := a.count()
		write := func() {
			a.toWrite += 10
			a.write(10)
		}
		write() // at once, silent
		write() // at once, and asks for a completion, as the first may still be on its way
		for range 20 {
			write()
		}
		settle(a, b)
		if n["DATA"] != 3 || b.e.Buffered() != 220 {
			t.Errorf("%d messages, %d bytes", n["DATA"], b.e.Buffered())
		}
		b.doRead(1000)
		settle(a, b)
		n = a.count()
		a.e.SetNoDelay(true)
		for range 5 {
			write()
		}
		settle(a, b)
		if n["DATA"] != 5 {
			t.Errorf("%d messages with NoDelay", n["DATA"])
		}
	})
}

// TestHalfClose: C265. The peer reads all, then the end, and can still write.
func TestC265_HalfClose(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		a, b, now := newPair(t, defaultPair(m), 1)
		a.toWrite, b.toWrite = 3000, 2000
		a.write(3000)
		a.e.CloseWrite()
		a.pump()
		if _, err := a.e.Room(); err != ErrShutdown {
			t.Errorf("Room after CloseWrite: %v", err)
		}
		settle(a, b)
		for b.doRead(100) {
			settle(a, b)
		}
		if b.read != 3000 || b.rerr != io.EOF {
			t.Errorf("read %d, %v", b.read, b.rerr)
		}
		if _, err := b.e.Peek(); err != io.EOF {
			t.Errorf("again: %v", err)
		}
		for b.written < 2000 {
			b.write(2000)
			settle(a, b)
			a.doRead(5000)
		}
		if a.read != 2000 {
			t.Errorf("the other direction: %d", a.read)
		}
		b.e.CloseWrite()
		b.pump()
		settle(a, b)
		if a.doRead(1); a.rerr != io.EOF {
			t.Errorf("%v", a.rerr)
		}
		a.e.Close(*now)
		b.e.Close(*now)
		a.pump()
		b.pump()
		settle(a, b)
		for range 3 {
			for _, s := range []*side{a, b} {
				if at, ok := s.e.Deadline(); ok {
					*now = at
					s.e.Advance(at)
					s.pump()
				}
			}
		}
		if a.events&Finished == 0 || b.events&Finished == 0 {
			t.Errorf("events %b, %b", a.events, b.events)
		}
	})
}

// TestC266_CloseRead: what arrives is thrown away, and the peer is not stopped.
func TestC266_CloseRead(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		a, b, _ := newPair(t, defaultPair(m), 1)
		b.toWrite = 1 << 20
		b.write(1000)
		settle(a, b)
		a.e.CloseRead()
		a.pump()
		if _, err := a.e.Peek(); err != io.EOF || a.e.Buffered() != 0 {
			t.Errorf("%v, %d bytes", err, a.e.Buffered())
		}
		for range 10000 {
			b.write(1 << 20)
			settle(a, b)
		}
		if b.written != b.toWrite || a.rnr+b.rnr != 0 {
			t.Errorf("wrote %d of %d", b.written, b.toWrite)
		}
	})
}

// TestC267_PeerCloses: what it wrote can be read, then the end; writing fails.
func TestC267_PeerCloses(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		a, b, now := newPair(t, defaultPair(m), 1)
		a.toWrite = 3
		a.write(3)
		a.e.Close(*now)
		a.pump()
		settle(a, b)
		if m == Verbena && a.events&Finished == 0 {
			t.Errorf("events %b", a.events)
		}
		if _, err := b.e.Room(); err != ErrPeerClosed {
			t.Errorf("Room: %v", err)
		}
		b.e.Disconnected()
		b.pump()
		b.doRead(100)
		if b.read != 3 || b.rerr != io.EOF {
			t.Errorf("read %d, %v", b.read, b.rerr)
		}
		if b.events&(Failed|Finished) != 0 || b.e.Err() != nil {
			t.Errorf("events %b, %v", b.events, b.e.Err())
		}
		b.e.Close(*now)
		b.pump()
		if b.events&Finished == 0 {
			t.Errorf("events %b", b.events)
		}
	})
}

// TestC268_PeerClosesUnread: the peer closes while our data wait in its buffers: our read
// gives the end, our write an error, in both modes.
func TestC268_PeerClosesUnread(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		a, b, now := newPair(t, defaultPair(m), 1)
		b.toWrite = 1000
		b.write(1000)
		settle(a, b)
		a.e.Close(*now)
		a.pump()
		settle(a, b)
		b.doRead(1)
		_, err := b.e.Room()
		if b.rerr != io.EOF || err != ErrPeerClosed {
			t.Errorf("%v, %v", b.rerr, err)
		}
	})
}

// TestC290_Abort: the peer's reader and writer get an error, at once.
func TestC290_Abort(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		a, b, now := newPair(t, defaultPair(m), 1)
		a.toWrite = 100_000
		a.write(100_000)
		settle(a, b)
		a.e.Abort(*now, Reset)
		a.pump()
		settle(a, b)
		if a.events&Finished == 0 || a.e.Err() != ErrAborted {
			t.Errorf("events %b, %v", a.events, a.e.Err())
		}
		if m == Compatible {
			return // DISCONNECT is all that its peer can be told
		}
		var p *PeerError
		if !errors.As(b.e.Err(), &p) || p.Reason != Reset {
			t.Errorf("%v", b.e.Err())
		}
		for b.doRead(1 << 20) {
		}
		if !errors.Is(b.rerr, ErrReset) || b.events&Failed == 0 {
			t.Errorf("read %d, %v, events %b", b.read, b.rerr, b.events)
		}
		if _, err := b.e.Room(); !errors.Is(err, ErrReset) {
			t.Errorf("Room: %v", err)
		}
	})
}

// TestTruncated: an end without the word for it is a reset, never an end of file.
func TestTruncated(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		a, b, _ := newPair(t, defaultPair(m), 1)
		a.toWrite = 5
		a.write(5)
		settle(a, b)
		b.e.Disconnected()
		b.pump()
		b.doRead(10)
		if b.read != 5 || b.rerr != ErrReset || b.events&Failed == 0 {
			t.Errorf("read %d, %v, events %b", b.read, b.rerr, b.events)
		}
		a.e.Fail(errTest)
		a.pump()
		if a.doRead(1); !errors.Is(a.rerr, ErrTransport) || !errors.Is(a.rerr, errTest) || a.events&Failed == 0 {
			t.Errorf("%v", a.rerr)
		}
	})
}

// TestDisconnectedWhileClosing: the peer's DREQ while Close waits for the last word is an
// orderly end if the peer's device has all data, and a reset if that is not known: data that
// were copied into the request keep no memory, but may be on their way all the same.
func TestDisconnectedWhileClosing(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name        string
		n           int
		data, word  bool // completed
		ev          Events
		alsoDrained bool
	}{
		{"inline", 5, false, false, Failed, false},
		{"inline, word acknowledged", 5, true, true, Finished, true},
		{"signaled", 400, false, false, Failed, false},
		{"signaled and acknowledged", 400, true, false, Finished, true},
		{"nothing", 0, false, false, Finished, false},
	} {
		a, _, now := newPair(t, defaultPair(Compatible), 1)
		for _, op := range a.sq {
			a.e.Sent(*now, op.ID)
		}
		a.pump()
		a.events, a.sq = 0, nil
		a.toWrite = x.n
		a.write(x.n)
		a.e.Close(*now)
		a.pump()
		for _, op := range a.sq {
			last := word(op.Imm).op() == wordControl
			if op.Signaled && (x.data && !last || x.word && last) {
				a.e.Sent(*now, op.ID)
			}
		}
		if inline := a.sq[0].Inline && !a.sq[0].Signaled; x.n > 0 && inline != (x.n == 5) {
			t.Fatalf("%s: %+v", x.name, a.sq[0].Op)
		}
		if drained := a.e.Events()&Drained != 0; drained != x.alsoDrained {
			t.Errorf("%s: Drained %v", x.name, drained)
		}
		a.e.Disconnected()
		a.pump()
		err := a.e.Err()
		if a.events&(Failed|Finished) != x.ev || (x.ev == Failed) != errors.Is(err, ErrReset) {
			t.Errorf("%s: events %b, %v", x.name, a.events, err)
		}
	}
}

// TestC290_Linger: Close delivers what was written before, to a slow reader too.
func TestC290_CloseDelivers(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		a, b, now := newPair(t, defaultPair(m), 1)
		a.toWrite = len(a.send)
		a.write(a.toWrite)
		a.e.Close(*now)
		a.pump()
		for b.read < a.toWrite {
			settle(a, b)
			if !b.doRead(1000) {
				t.Fatalf("read %d of %d, %v", b.read, a.toWrite, b.rerr)
			}
		}
		settle(a, b)
		if b.doRead(1); b.rerr != io.EOF {
			t.Errorf("%v", b.rerr)
		}
		if m == Verbena && a.events&Finished == 0 {
			t.Errorf("events %b", a.events)
		}
	})
}

// TestC291_KeepAlive: an idle connection stays up by probes; a peer that is silent is
// given up after idle + interval × count; without keep-alive there are none.
func TestC291_KeepAlive(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		c := defaultPair(m)
		c.keepAlive = KeepAlive{Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}
		a, b, now := newPair(t, c, 1)
		settle(a, b)
		ops := a.opCount
		step := func() {
			at := time.Duration(1 << 62)
			for _, s := range []*side{a, b} {
				if d, ok := s.e.Deadline(); ok {
					at = min(at, d)
				}
			}
			*now = at
			for _, s := range []*side{a, b} {
				s.e.Advance(at)
				s.pump()
			}
		}
		for *now < 10*time.Minute {
			step()
			settle(a, b)
		}
		if a.e.Err() != nil || b.e.Err() != nil || a.opCount == ops {
			t.Fatalf("%v, %v, %d probes", a.e.Err(), b.e.Err(), a.opCount-ops)
		}
		if n := a.opCount - ops; n > 100 {
			t.Errorf("%d messages in 10 minutes", n)
		}
		last := a.e.alive.last
		for a.e.Err() == nil { // nothing arrives any more
			step()
			if *now > time.Hour {
				t.Fatal("not found")
			}
		}
		if a.e.Err() != ErrKeepAlive || *now-last != 30*time.Second || a.events&Failed == 0 {
			t.Errorf("%v after %v, events %b", a.e.Err(), *now-last, a.events)
		}
		c.keepAlive = KeepAlive{}
		a, _, _ = newPair(t, c, 1)
		if at, ok := a.e.Deadline(); ok {
			t.Errorf("deadline %v without keep-alive", at)
		}
	})
}

// TestIdle: an idle connection sends nothing and needs no send buffer.
func TestIdle(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		a, b, _ := newPair(t, defaultPair(m), 1)
		settle(a, b)
		if l, err := a.e.Peek(); l.Len != 0 || err != nil {
			t.Errorf("%+v, %v", l, err)
		}
		a.e.Commit(0)
		a.e.Consume(0)
		n := a.opCount
		a.pump()
		if a.opCount != n {
			t.Error("something was sent")
		}
		if !a.e.SetSendBuffer(0) {
			t.Error("SetSendBuffer")
		}
		if l, err := a.e.Room(); l.Len != 0 || err != nil {
			t.Errorf("%+v, %v", l, err)
		}
		a.e.Events()
		if !a.e.SetSendBuffer(100) || a.e.Events()&Writable == 0 {
			t.Error("a new send buffer makes nobody writable")
		}
		a.toWrite = 500
		a.write(500)
		if a.e.SetSendBuffer(0) {
			t.Error("the send buffer is in use")
		}
		for a.written < 500 {
			settle(a, b)
			a.write(500)
		}
		settle(a, b)
		b.doRead(500)
		if b.read != 500 {
			t.Errorf("read %d", b.read)
		}
	})
}

// TestConfig: what is not possible is refused, with the field.
func TestConfig(t *testing.T) {
	t.Parallel()
	for _, m := range []Mode{Compatible, Verbena} {
		a, b, _ := newPair(t, defaultPair(m), 1)
		good := a.e.cfg
		good.Local, good.Peer = &a.hello, &b.hello
		if _, err := New(good); err != nil {
			t.Fatal(err)
		}
		for field, do := range map[string]func(c *Config){
			"Mode":       func(c *Config) { c.Mode = 3 },
			"SendQueue":  func(c *Config) { c.SendQueue = 15 },
			"RecvQueue":  func(c *Config) { c.RecvQueue = 11 },
			"Posted":     func(c *Config) { c.Posted = 10000 },
			"SendBuffer": func(c *Config) { c.SendBuffer = -1 },
			"MaxRecv":    func(c *Config) { c.MaxRecv = 1000 },
			"Recv":       func(c *Config) { c.Recv.Size = 100 },
		} {
			c := good
			do(&c)
			var e *ConfigError
			if _, err := New(c); !errors.As(err, &e) || e.Field != field {
				t.Errorf("%v: %s: %v", m, field, err)
			}
		}
	}
}
