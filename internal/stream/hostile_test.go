package stream

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// one gives an engine whose peer is the test: nothing of the other side of the pair is
// used but its hello.
func one(t testing.TB, m Mode, change func(*pairConfig)) *side {
	t.Helper()
	c := defaultPair(m)
	if change != nil {
		change(&c)
	}
	a, _, _ := newPair(t, c, 1)
	return a
}

// get gives the engine a message of a hostile peer.
func (s *side) get(opcode ib.WCOpcode, imm uint32, body []byte) {
	if s.e.Mode() == Verbena && len(s.recvs) > 0 {
		l := s.recvs[0].Loc
		copy(s.mems[l.Region][l.Off:l.Off+l.Len], body)
	}
	if len(s.recvs) > 0 {
		s.recvs = s.recvs[1:]
	}
	s.e.Received(*s.now, Arrival{Opcode: opcode, HasImm: true, Imm: imm, Len: uint32(len(body))})
	s.pump()
}

// raw gives the engine a completion as it is.
func (s *side) raw(a Arrival) {
	if len(s.recvs) > 0 {
		s.recvs = s.recvs[1:]
	}
	s.e.Received(*s.now, a)
	s.pump()
}

// word gives a word of rsockets; n bytes were written with it.
func (s *side) word(w word, n int) { s.get(ib.WCRecvWriteImm, uint32(w), make([]byte, n)) }

// entry puts an entry where the peer writes the next.
func (s *side) entry(slot int, e sglEntry) { e.put(s.table[sglLen*slot:], binary.LittleEndian) }

// vmsg gives a message of Verbena with right counters.
func (s *side) vmsg(kind, value uint32, body []byte) {
	v := s.e.v
	s.get(ib.WCRecv, uint32(makeVword(kind, value, v.seq, v.limit)), body)
}

// u64 and u32 make bodies.
func u64(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
func u32(n ...uint32) (b []byte) {
	for _, n := range n {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b
}

// TestC296_Misbehaving: each thing that a peer must not do gives one clear error on that
// connection, and the peer is told, if it can be.
func TestC296_Misbehaving(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		mode Mode
		do   func(s *side)
		want string
	}{
		{"message without immediate", Compatible, func(s *side) {
			s.raw(Arrival{Opcode: ib.WCRecv})
		}, "without immediate"},
		{"SEND with data", Compatible, func(s *side) { s.get(ib.WCRecv, uint32(makeWord(wordCredit, 56)), make([]byte, 16)) }, "a SEND"},
		{"reserved 1", Compatible, func(s *side) { s.word(makeWord(1, 5), 5) }, "reserved operation"},
		{"reserved 2", Compatible, func(s *side) { s.word(makeWord(2, 5), 5) }, "reserved operation"},
		{"reserved 3", Compatible, func(s *side) { s.word(makeWord(3, 5), 5) }, "reserved operation"},
		{"reserved 5", Compatible, func(s *side) { s.word(makeWord(5, 5), 5) }, "reserved operation"},
		{"data beyond the buffer", Compatible, func(s *side) { s.word(makeWord(wordData, 513), 513) }, "beyond the end of the buffer: 513, allowed 512"},
		{"data over two buffers", Compatible, func(s *side) {
			s.word(makeWord(wordData, 500), 500)
			s.word(makeWord(wordData, 24), 24)
		}, "beyond the end of the buffer: 24, allowed 12"},
		{"length greater than the message", Compatible, func(s *side) { s.word(makeWord(wordData, 100), 5) }, "not that of the message: 100, allowed 5"},
		{"greatest length", Compatible, func(s *side) { s.word(makeWord(wordData, maxValue), 5) }, "not that of the message"},
		{"more messages than credits", Compatible, func(s *side) {
			s.noPump = true // no credits are given
			for range 57 {
				s.word(makeWord(wordData, 1), 1)
			}
			s.noPump = false
			s.pump()
		}, "more messages than it had credits for"},
		{"data without a buffer", Compatible, func(s *side) {
			s.noPump = true // no buffers are given
			for range 5 {
				s.word(makeWord(wordData, 512), 512)
			}
			s.noPump = false
			s.pump()
		}, "data without a buffer"},
		{"limit runs backwards", Compatible, func(s *side) {
			s.word(makeWord(wordCredit, 60), 0)
			s.word(makeWord(wordCredit, 59), 0)
		}, "limit of messages ran backwards: 59, allowed 60"},
		{"limit jumps", Compatible, func(s *side) {
			s.word(makeWord(wordCredit, 32000), 0)
			s.word(makeWord(wordCredit, 64000), 0)
			s.word(makeWord(wordCredit, 200), 0)
		}, "more credits than sequence numbers"},
		{"update of a strange length", Compatible, func(s *side) { s.word(makeWord(wordCredit, 60), 8) }, "strange length: 8, allowed 16"},
		{"empty buffer", Compatible, func(s *side) {
			s.entry(1, sglEntry{1, 1, 0})
			s.word(makeWord(wordCredit, 60), 16)
		}, "empty or wraps"},
		{"buffer that wraps", Compatible, func(s *side) {
			s.entry(1, sglEntry{1<<64 - 5, 1, 10})
			s.word(makeWord(wordCredit, 60), 16)
		}, "empty or wraps"},
		{"more buffers than the table holds", Compatible, func(s *side) {
			for i := range 5 {
				s.entry((i+1)%4, sglEntry{4096, 1, 10})
				s.word(makeWord(wordCredit, 60), 16)
			}
		}, "more than the table holds: 5, allowed 4"},
		{"map beyond the table", Compatible, func(s *side) { s.word(makeWord(wordIOMap, 2), 24) }, "beyond the end of the table: 2, allowed 2"},
		{"map at the greatest index", Compatible, func(s *side) { s.word(makeWord(wordIOMap, maxValue), 24) }, "beyond the end of the table"},
		{"map of a strange length", Compatible, func(s *side) { s.word(makeWord(wordIOMap, 0), 16) }, "strange length: 16, allowed 24"},
		{"map that wraps", Compatible, func(s *side) {
			remoteMap{offset: 1<<64 - 1, sglEntry: sglEntry{5, 5, 5}}.put(s.table[4*sglLen:], binary.LittleEndian)
			s.word(makeWord(wordIOMap, 0), 24)
		}, "a map that wraps"},
		{"control word with data", Compatible, func(s *side) { s.word(makeWord(wordControl, controlShutdown), 4) }, "control word with data"},

		{"no immediate", Verbena, func(s *side) {
			s.raw(Arrival{Opcode: ib.WCRecv, Len: 5})
		}, "no SEND with immediate"},
		{"WRITE", Verbena, func(s *side) { s.get(ib.WCRecvWriteImm, 0, nil) }, "no SEND with immediate"},
		{"larger than the receive", Verbena, func(s *side) {
			s.raw(Arrival{Opcode: ib.WCRecv, HasImm: true, Imm: uint32(makeVword(vData, 0, 0, 12)), Len: 513})
		}, "larger than its receive: 513, allowed 512"},
		{"unknown kind", Verbena, func(s *side) { s.vmsg(vKinds, 0, nil) }, "unknown kind"},
		{"last unknown kind", Verbena, func(s *side) { s.vmsg(15, 0, nil) }, "unknown kind"},
		{"acknowledges what was not sent", Verbena, func(s *side) { s.get(ib.WCRecv, uint32(makeVword(vCredit, 0, s.e.v.seq+1, 12)), nil) }, "acknowledgement of what was not sent"},
		{"acknowledgement runs backwards", Verbena, func(s *side) {
			s.write(64)
			s.vmsg(vCredit, 0, nil)
			s.get(ib.WCRecv, uint32(makeVword(vCredit, 0, s.e.v.seq-1, 12)), nil)
		}, "acknowledgement of what was not sent"},
		{"credit runs backwards", Verbena, func(s *side) { s.get(ib.WCRecv, uint32(makeVword(vCredit, 0, 0, 11)), nil) }, "credit ran backwards: 11, allowed 12"},
		{"credit beyond the counters", Verbena, func(s *side) { s.get(ib.WCRecv, uint32(makeVword(vCredit, 0, 0, 512)), nil) }, "more receives than counters can tell"},
		{"empty data", Verbena, func(s *side) { s.vmsg(vData, 0, nil) }, "DATA of no bytes"},
		{"data after FIN", Verbena, func(s *side) {
			s.vmsg(vFin, 0, u64(0))
			s.vmsg(vData, 0, []byte("x"))
		}, "DATA after FIN"},
		{"FIN with a wrong count", Verbena, func(s *side) {
			s.vmsg(vData, 0, []byte("xyz"))
			s.vmsg(vFin, 0, u64(4))
		}, "another number of bytes than came: 4, allowed 3"},
		{"second FIN", Verbena, func(s *side) {
			s.vmsg(vFin, 0, u64(0))
			s.vmsg(vFin, 0, u64(0))
		}, "second FIN"},
		{"FIN of a strange length", Verbena, func(s *side) { s.vmsg(vFin, 0, u64(0)[:7]) }, "strange length: 7, allowed 8"},
		{"CREDIT with a body", Verbena, func(s *side) { s.vmsg(vCredit, 0, u64(0)) }, "strange length: 8, allowed 0"},
		{"CLOSE without FIN", Verbena, func(s *side) { s.vmsg(vClose, uint32(Normal), u64(0)) }, "CLOSE without FIN"},
		{"CLOSE took too much", Verbena, func(s *side) {
			s.vmsg(vFin, 0, u64(0))
			s.vmsg(vClose, uint32(Normal), u64(1))
		}, "took more than was sent: 1, allowed 0"},
		{"size too small", Verbena, func(s *side) { s.vmsg(vSize, 5, u32(12, 0)) }, "size that is not possible"},
		{"size too large", Verbena, func(s *side) { s.vmsg(vSize, 22, u32(12, 0)) }, "size that is not possible"},
		{"size too late", Verbena, func(s *side) {
			s.get(ib.WCRecv, uint32(makeVword(vSize, 16, 0, 30)), u32(11, 0))
		}, "comes too late"},
		{"size with too few receives", Verbena, func(s *side) {
			s.get(ib.WCRecv, uint32(makeVword(vSize, 16, 0, 19)), u32(12, 0))
		}, "too few receives"},
		{"size in the future", Verbena, func(s *side) {
			s.get(ib.WCRecv, uint32(makeVword(vSize, 16, 0, 30)), u32(1000, 0))
		}, "too few receives"},
		{"too many sizes", Verbena, func(s *side) {
			for i := range uint32(9) {
				s.get(ib.WCRecv, uint32(makeVword(vSize, 10+i%2, s.e.v.seq, 12+8*(i+1))), u32(12+8*i, 0))
			}
		}, "too many changes"},
		{"use up what was not told", Verbena, func(s *side) { s.vmsg(vSize, 9, u32(12, 13)) }, "used up that were not told: 13, allowed 12"},
		{"map beyond the table", Verbena, func(s *side) {
			s.vmsg(vMap, 0, append(u32(2), make([]byte, 24)...))
		}, "beyond the end of the table"},
		{"map that wraps", Verbena, func(s *side) {
			b := u32(0)
			b = append(b, u64(0)...)
			b = append(b, u64(1<<64-1)...)
			s.vmsg(vMap, 0, append(b, u32(1, 9)...))
		}, "empty or wraps"},
		{"map of a strange length", Verbena, func(s *side) { s.vmsg(vMap, 0, u32(1)) }, "strange length"},
		{"unmap of nothing", Verbena, func(s *side) { s.vmsg(vUnmap, 0, u32(1)) }, "was not given"},
		{"unmapped without a question", Verbena, func(s *side) { s.vmsg(vUnmapped, 0, u32(1)) }, "was not asked for"},
		{"more messages than it was told of", Verbena, func(s *side) {
			s.noPump = true
			for range 5 {
				s.vmsg(vData, 0, []byte("x"))
			}
			for s.e.Buffered() > 0 {
				s.e.Consume(1)
			}
			var r Recv
			for s.e.NextRecv(&r) { // posted, and not told
				s.recvs = append(s.recvs, r)
			}
			for range 8 {
				s.vmsg(vData, 0, []byte("x"))
			}
			s.recvID += 5
			s.noPump = false
			s.pump()
		}, "more messages than receives that it was told of"},
	}
	for _, c := range cases {
		t.Run(c.mode.String()+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			s := one(t, c.mode, func(p *pairConfig) {
				p.recvCount = [2]int{12, 12}
				if c.mode == Compatible {
					p.recvCount[0] = 4
				}
				p.iomap = [2]int{2, 2}
			})
			s.sq = nil
			c.do(s)
			err := s.e.Err()
			var p *ProtocolError
			if !errors.As(err, &p) || !strings.Contains(err.Error(), c.want) || p.Mode != c.mode {
				t.Fatalf("error %v, want %q", err, c.want)
			}
			if _, err := s.e.Room(); !errors.As(err, &p) {
				t.Errorf("Room: %v", err)
			}
			for s.e.Buffered() > 0 {
				l, _ := s.e.Peek()
				s.e.Consume(int(l.Len))
			}
			if _, err := s.e.Peek(); !errors.As(err, &p) && err != io.EOF {
				t.Errorf("Peek: %v", err)
			}
			s.pump()
			// The peer is told, once, and then the connection is over.
			last := s.sq[len(s.sq)-1]
			if c.mode == Compatible {
				if w := word(last.Imm); w != makeWord(wordControl, controlDisconnect) {
					t.Errorf("last word %v", w)
				}
			} else if w := vword(last.Imm); w.kind() != vClose || Reason(w.value()) != BadProtocol {
				t.Errorf("last word %v", w)
			}
			if s.events&(Failed|Finished) != 0 {
				t.Error("over before the last word arrived")
			}
			s.e.Sent(*s.now, last.ID)
			s.pump()
			if s.events&Failed == 0 {
				t.Errorf("events %b", s.events)
			}
			n := len(s.sq)
			s.e.Received(*s.now, Arrival{Opcode: ib.WCRecv, HasImm: true})
			s.pump()
			if len(s.sq) != n {
				t.Error("it goes on after the end")
			}
		})
	}
}

// TestHostileLastWordTimesOut: a peer that broke the protocol and does not take the last
// word either is left after a second.
func TestHostileLastWordTimesOut(t *testing.T) {
	t.Parallel()
	for _, m := range []Mode{Compatible, Verbena} {
		s := one(t, m, nil)
		s.get(ib.WCRecvWriteImm, 5<<29, nil)
		if s.e.Err() == nil {
			t.Fatal("no error")
		}
		at, ok := s.e.Deadline()
		if !ok || at != lastWordTime {
			t.Fatalf("deadline %v, %v", at, ok)
		}
		*s.now = at
		s.e.Advance(at)
		s.pump()
		if s.events&Failed == 0 {
			t.Errorf("%v: events %b", m, s.events)
		}
	}
}

// TestC296_Harmless: what looks odd and is allowed.
func TestC296_Harmless(t *testing.T) {
	t.Parallel()
	s := one(t, Compatible, func(c *pairConfig) { c.recvCount[0] = 4; c.iomap = [2]int{2, 2} })
	s.word(makeWord(wordControl, 3), 0)     // unknown control words
	s.word(makeWord(wordControl, 1<<20), 0) //
	s.word(makeWord(wordControl, controlKeepAlive), 0)
	s.word(makeWord(wordCredit, 56), 0)                     // nothing new
	s.word(makeWord(wordCredit, 1<<16|57), 0)               // bit 16 is set
	s.get(ib.WCRecv, uint32(makeWord(wordCredit, 58)), nil) // as a SEND of no bytes
	s.word(makeWord(wordData, 0), 0)                        // nothing
	s.word(makeWord(wordIOMap, 1), 24)                      // a map of length 0
	if err := s.e.Err(); err != nil {
		t.Fatal(err)
	}
	if s.e.c.limit != 58 || s.e.c.seq != 2 {
		t.Errorf("limit %d, seq %d", s.e.c.limit, s.e.c.seq)
	}
}

// TestC275_PeerGivesNoCredits: a peer that never gives credits, buffers or receives stops
// the writer, and nothing else; Close ends it in its time.
func TestC275_PeerGivesNoCredits(t *testing.T) {
	t.Parallel()
	for _, m := range []Mode{Compatible, Verbena} {
		a, b, now := newPair(t, defaultPair(m), 3)
		a.toWrite = 1 << 20
		b.noPump = true // b takes messages and is silent
		for range 100 {
			a.write(64 << 10)
			for a.deliverTo(b) || a.poll() {
			}
		}
		if a.rnr != 0 || a.written > len(a.send)+12*512 || a.written < len(a.send) {
			t.Errorf("%v: wrote %d, %d RNR", m, a.written, a.rnr)
		}
		if l, err := a.e.Room(); l.Len != 0 || err != nil {
			t.Errorf("%v: room %+v, %v", m, l, err)
		}
		a.e.Close(*now)
		a.pump()
		at, ok := a.e.Deadline()
		if !ok || at != *now+defaultLinger {
			t.Fatalf("%v: deadline %v, %v", m, at, ok)
		}
		*now = at
		a.e.Advance(at)
		a.pump()
		for a.deliverTo(b) || a.poll() {
		}
		if !errors.Is(a.e.Err(), ErrLinger) || a.events&Failed == 0 {
			t.Errorf("%v: %v, events %b", m, a.e.Err(), a.events)
		}
		if m == Verbena {
			b.noPump = false
			for b.poll() {
			}
			var p *PeerError
			if !errors.As(b.e.Err(), &p) || p.Reason != Lingered || !errors.Is(b.e.Err(), ErrReset) {
				t.Errorf("the peer got %v", b.e.Err())
			}
		}
	}
}

// TestC295_Hello: every field of a hello is checked.
func TestC295_Hello(t *testing.T) {
	t.Parallel()
	good := Hello{Flags: FlagIOMap, Credits: 384, IOMap: 3, SGLAddr: 1 << 40, SGLKey: 5, SGLLen: 2, BufAddr: 1 << 41, BufKey: 6, BufLen: 65536,
		Ext: Extension{Version: 1, Credits: 12, RecvSize: 512, Instance: 77}}
	for _, side := range []Side{Request, Reply} {
		h, err := ParseHello(append(good.Append(nil), make([]byte, 30)...), side)
		if err != nil || h != good && side == Request {
			t.Fatalf("%+v, %v", h, err)
		}
	}
	for _, c := range []struct {
		field string
		do    func(b []byte) []byte
	}{
		{"length", func(b []byte) []byte { return b[:39] }},
		{"length", func(b []byte) []byte { return nil }},
		{"version", func(b []byte) []byte { b[0] = 0; return b }},
		{"version", func(b []byte) []byte { b[0] = 2; return b }},
		{"version", func(b []byte) []byte { b[0] = 255; return b }},
		{"credits", func(b []byte) []byte { b[2], b[3] = 0, 0; return b }},
		{"SGL length", func(b []byte) []byte { copy(b[20:], u32(0)); return b }},
		{"SGL length", func(b []byte) []byte { copy(b[20:], u32(2<<24)); return b }}, // of the other byte order
		{"SGL length", func(b []byte) []byte { copy(b[20:], u32(1<<16+1)); return b }},
		{"SGL address", func(b []byte) []byte { copy(b[8:], u64(1<<64-20)); return b }},
		{"buffer length", func(b []byte) []byte { copy(b[36:], u32(0)); return b }},
		{"buffer address", func(b []byte) []byte { copy(b[24:], u64(1<<64-65535)); return b }},
		{"extension version", func(b []byte) []byte { b[44] = 0; return b }},
		{"extension credits", func(b []byte) []byte { b[46] = 7; return b }},
		{"receive size", func(b []byte) []byte { b[47] = 5; return b }},
		{"receive size", func(b []byte) []byte { b[47] = 22; return b }},
	} {
		_, err := ParseHello(c.do(good.Append(nil)), Request)
		var h *HelloError
		if !errors.As(err, &h) || h.Field != c.field {
			t.Errorf("%s: %v", c.field, err)
		}
	}
	// No magic, or too short for it: a plain rsocket. Unknown flags mean nothing.
	b := good.Append(nil)
	b[40] = 'X'
	b[1] |= 0xF0
	if h, err := ParseHello(b, Request); err != nil || h.Ext.Version != 0 {
		t.Errorf("%+v, %v", h, err)
	}
	if h, err := ParseHello(good.Append(nil)[:55], Request); err != nil || h.Ext.Version != 0 {
		t.Errorf("%+v, %v", h, err)
	}
	// The map's size counts only with its flag, and is what the byte can say.
	for _, c := range []struct{ n, want int }{{0, 0}, {1, 1}, {128, 128}, {129, 128}, {255, 128}, {256, 256}, {300, 256}, {1 << 20, MaxIOMap}} {
		g := good
		g.IOMap = c.n
		if h, err := ParseHello(g.Append(nil), Request); err != nil || h.IOMap != c.want {
			t.Errorf("map of %d: %d, %v", c.n, h.IOMap, err)
		}
		g.Flags = 0
		if h, _ := ParseHello(g.Append(nil), Request); h.IOMap != 0 {
			t.Errorf("map without flag: %d", h.IOMap)
		}
	}
}

// TestNegotiate: only if both show the extension is it Verbena.
func TestNegotiate(t *testing.T) {
	t.Parallel()
	plain, ext, next := &Hello{}, &Hello{Ext: Extension{Version: 1}}, &Hello{Ext: Extension{Version: 2}}
	for _, c := range []struct {
		req, rep *Hello
		want     Mode
	}{{plain, plain, Compatible}, {ext, plain, Compatible}, {ext, ext, Verbena}, {next, ext, Verbena}, {plain, ext, 0}, {ext, next, 0}, {next, next, 0}} {
		m, err := Negotiate(c.req, c.rep)
		if m != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%d and %d: %v, %v", c.req.Ext.Version, c.rep.Ext.Version, m, err)
		}
	}
}
