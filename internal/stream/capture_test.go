package stream

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
)

const captures = "../../testdata/captures/rsockets"

// seen is a message, or the end, of a captured conversation.
type seen struct {
	from  int // 0: client
	op    ib.Opcode
	imm   bool
	word  word
	addr  uint64
	key   ib.RKey
	data  []byte
	dreq  bool
	frame int
}

// conversation is a connection of a capture.
type conversation struct {
	hello    [2]Hello
	private  [2][]byte
	messages []seen
}

// readCapture finds the connections of a capture whose private data are hellos.
func readCapture(t *testing.T, name string) (all []*conversation) {
	t.Helper()
	f, err := os.Open(filepath.Join(captures, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := wire.NewPcapReader(bufio.NewReader(f))
	if err != nil {
		t.Fatal(err)
	}
	type end struct {
		addr netip.Addr
		qpn  ib.QPN
	}
	type half struct {
		c    *conversation
		from int
		psn  ib.PSN
		has  bool
		open *seen
	}
	ends := map[end]*half{} // by destination
	type request struct {
		end end
		c   *conversation
	}
	requests := map[uint32]*request{}
	replied := map[uint32]bool{}
	for frame := 1; ; frame++ {
		_, b, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		d, ok := wire.ParseFrame(bytes.Clone(b))
		if !ok || d.Dst.Port() != wire.Port {
			continue
		}
		var p wire.Packet
		if len(d.Payload) < 4 || p.Decode(d.Payload[:len(d.Payload)-4]) != nil {
			continue
		}
		if p.DestQP == 1 {
			mad := p.Payload
			if len(mad) < 256 || mad[1] != 0x07 {
				continue
			}
			body := mad[24:]
			id := binary.BigEndian.Uint32(body)
			switch binary.BigEndian.Uint16(mad[16:]) {
			case 0x0010: // REQ
				private := body[140:232]
				h, err := ParseHello(private[36:], Request)
				if err != nil || requests[id] != nil {
					continue
				}
				c := &conversation{}
				c.hello[0], c.private[0] = h, private[36:]
				requests[id] = &request{end{d.Src.Addr(), ib.QPN(binary.BigEndian.Uint32(body[32:]) >> 8)}, c}
			case 0x0013: // REP
				remote := binary.BigEndian.Uint32(body[4:])
				q := requests[remote]
				if q == nil || replied[remote] {
					continue
				}
				replied[remote] = true
				h, err := ParseHello(body[36:232], Reply)
				if err != nil {
					t.Fatalf("%s: frame %d: %v", name, frame, err)
				}
				q.c.hello[1], q.c.private[1] = h, body[36:232]
				ends[q.end] = &half{c: q.c, from: 1}
				ends[end{d.Src.Addr(), ib.QPN(binary.BigEndian.Uint32(body[12:]) >> 8)}] = &half{c: q.c, from: 0}
				all = append(all, q.c)
			case 0x0015: // DREQ
				qpn := ib.QPN(binary.BigEndian.Uint32(body[8:]) >> 8)
				if h := ends[end{d.Dst.Addr(), qpn}]; h != nil {
					h.c.messages = append(h.c.messages, seen{from: h.from, dreq: true, frame: frame})
				}
			}
			continue
		}
		h := ends[end{d.Dst.Addr(), p.DestQP}]
		if h == nil {
			continue
		}
		op := p.Opcode.Operation()
		switch op {
		case wire.WriteFirst, wire.WriteMiddle, wire.WriteLast, wire.WriteLastImm, wire.WriteOnly, wire.WriteOnlyImm, wire.SendOnlyImm:
		default:
			continue
		}
		if h.has && p.PSN != h.psn {
			continue // sent again
		}
		h.has, h.psn = true, (p.PSN+1)&0xFFFFFF
		if h.open == nil {
			h.open = &seen{from: h.from, op: ib.OpWrite, addr: p.RETH.Addr, key: p.RETH.RKey, frame: frame}
		}
		h.open.data = append(h.open.data, p.Payload...)
		switch op {
		case wire.WriteLastImm, wire.WriteOnlyImm:
			h.open.op, h.open.imm, h.open.word = ib.OpWriteImm, true, word(p.Imm)
		case wire.SendOnlyImm:
			h.open.op, h.open.imm, h.open.word = ib.OpSendImm, true, word(p.Imm)
		case wire.WriteFirst, wire.WriteMiddle:
			continue
		}
		h.c.messages = append(h.c.messages, *h.open)
		h.open = nil
	}
	return all
}

// flat is where bytes were written, in order, with neighbours joined.
type flat []sglEntry

func (f *flat) add(addr uint64, key ib.RKey, n int) {
	if n == 0 {
		return
	}
	if k := len(*f); k > 0 {
		if l := &(*f)[k-1]; l.key == key && l.addr+uint64(l.n) == addr {
			l.n += uint32(n)
			return
		}
	}
	*f = append(*f, sglEntry{addr, key, uint32(n)})
}

// update is an entry that was written to a table.
type update struct {
	addr uint64
	data string
}

// replay lets an engine play one side of a captured conversation.
type replay struct {
	t    *testing.T
	name string
	c    *conversation
	role int
	e    *Engine
	now  time.Duration

	ring, table, send []byte
	cData             flat // what the captured side wrote
	data              flat // what the engine did
	cUpdates, updates []update
	maps, cMaps       []string
	writes, cWrites   flat
	got, want         []byte
	eof               bool
	sentLast, sentFin bool
	events            Events
	skip              int // data of C after its own end
}

func (r *replay) pump() {
	var rv Recv
	for r.e.NextRecv(&rv) {
	}
	var op Op
	for r.e.Next(r.now, &op) {
		w := word(op.Imm)
		switch {
		case op.Opcode == ib.OpWrite:
			r.writes.add(op.Remote, op.RKey, op.Len())
		case w.op() == wordData:
			r.data.add(op.Remote, op.RKey, op.Len())
		case w.op() == wordCredit && op.DataN > 0:
			r.updates = append(r.updates, update{op.Remote, hex.EncodeToString(op.Data[:op.DataN])})
		case w.op() == wordIOMap:
			r.maps = append(r.maps, w.String()+hex.EncodeToString(op.Data[:op.DataN]))
		case w == makeWord(wordControl, controlDisconnect):
			r.sentLast = true
		case w == makeWord(wordControl, controlShutdown):
			r.sentFin = true
		}
		if op.Signaled {
			r.e.Sent(r.now, op.ID)
		}
	}
	for {
		l, err := r.e.Peek()
		if err != nil {
			r.eof = true
		}
		if l.Len == 0 || err != nil {
			break
		}
		r.got = append(r.got, r.ring[l.Off:l.Off+l.Len]...)
		r.e.Consume(int(l.Len))
		for r.e.NextRecv(&rv) {
		}
		var op Op
		for r.e.Next(r.now, &op) {
			if w := word(op.Imm); w.op() == wordCredit && op.DataN > 0 {
				r.updates = append(r.updates, update{op.Remote, hex.EncodeToString(op.Data[:op.DataN])})
			} else if w.op() == wordData {
				r.data.add(op.Remote, op.RKey, op.Len())
			}
			if op.Signaled {
				r.e.Sent(r.now, op.ID)
			}
		}
	}
	r.events |= r.e.Events()
}

// peer takes a message of the other side.
func (r *replay) peer(m *seen) {
	if m.dreq {
		r.e.Disconnected()
		r.pump()
		return
	}
	h := &r.c.hello[r.role]
	for _, mem := range []struct {
		addr uint64
		key  ib.RKey
		b    []byte
	}{{h.BufAddr, h.BufKey, r.ring}, {h.SGLAddr, h.SGLKey, r.table}} {
		if len(m.data) > 0 && m.key == mem.key && m.addr >= mem.addr && m.addr-mem.addr+uint64(len(m.data)) <= uint64(len(mem.b)) {
			copy(mem.b[m.addr-mem.addr:], m.data)
		}
	}
	if !m.imm {
		return
	}
	if m.word.op() == wordData && !r.eof {
		r.want = append(r.want, m.data...)
	}
	a := Arrival{Opcode: ib.WCRecvWriteImm, HasImm: true, Imm: uint32(m.word), Len: uint32(len(m.data))}
	if m.op == ib.OpSendImm {
		a.Opcode = ib.WCRecv
	}
	r.e.Received(r.now, a)
	r.pump()
	if err := r.e.Err(); err != nil {
		r.t.Fatalf("%s, role %d, frame %d: %v", r.name, r.role, m.frame, err)
	}
}

// own does what the captured side did.
func (r *replay) own(m *seen) {
	switch {
	case m.dreq:
		return
	case !m.imm:
		if len(m.data) == 0 {
			return // keep-alive
		}
		r.cWrites.add(m.addr, m.key, len(m.data))
		for i := range r.e.maps.remote {
			x := &r.e.maps.remote[i]
			if x.key != m.key || m.addr < x.addr {
				continue
			}
			off := m.addr - x.addr + x.offset
			for b := m.data; len(b) > 0; {
				l, err := r.e.MapRoom(off)
				if err != nil || l.Len == 0 {
					r.t.Fatalf("%s, frame %d: MapRoom: %+v, %v", r.name, m.frame, l, err)
				}
				n := min(len(b), int(l.Len))
				r.e.CommitMap(off, n)
				b, off = b[n:], off+uint64(n)
				r.pump()
			}
		}
		return
	}
	switch m.word.op() {
	case wordData:
		if r.e.end.write != writeOpen || r.e.end.peerClosed {
			r.skip++ // C sends after its own shutdown, and after the peer's; we do not
			return
		}
		r.cData.add(m.addr, m.key, len(m.data))
		for b := m.data; len(b) > 0; {
			l, err := r.e.Room()
			if err != nil || l.Len == 0 {
				r.t.Fatalf("%s, role %d, frame %d: Room: %+v, %v", r.name, r.role, m.frame, l, err)
			}
			n := copy(r.send[l.Off:l.Off+l.Len], b)
			r.e.Commit(n)
			b = b[n:]
		}
	case wordCredit:
		if len(m.data) > 0 && m.op == ib.OpWriteImm {
			r.cUpdates = append(r.cUpdates, update{m.addr, hex.EncodeToString(m.data)})
		}
	case wordIOMap:
		r.cMaps = append(r.cMaps, m.word.String()+hex.EncodeToString(m.data))
		x := parseMap(m.data, order(&r.e.peer))
		if err := r.e.MapLocal(int(m.word.value()), x.offset, x.addr, x.key, x.n); err != nil && !errors.Is(err, ErrMapBusy) {
			r.t.Fatalf("%s, frame %d: %v", r.name, m.frame, err)
		}
	case wordControl:
		switch m.word.value() {
		case controlShutdown:
			r.e.CloseWrite()
		case controlDisconnect:
			r.e.Close(r.now)
			r.eof = true
		}
	}
	r.pump()
}

// replayAs runs the conversation with an engine in one role.
func replayAs(t *testing.T, name string, c *conversation, role int) *replay {
	t.Helper()
	h := &c.hello[role]
	r := &replay{t: t, name: name, c: c, role: role}
	r.ring = make([]byte, 2*h.BufLen)
	r.table = make([]byte, TableLen(int(h.SGLLen), h.IOMap))
	r.send = make([]byte, 4<<20)
	e, err := New(Config{
		Mode: Compatible, Local: h, Peer: &c.hello[1-role], SendQueue: 512, RecvQueue: int(h.Credits) + SpareRecvs, Inline: 64,
		Recv:  RecvMemory{Size: int(h.BufLen), Count: 2, Addr: h.BufAddr, RKey: h.BufKey, Mem: r.ring},
		Table: r.table, SendBuffer: len(r.send), NoDelay: true,
	})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	r.e = e
	r.pump()
	for i := range c.messages {
		if m := &c.messages[i]; m.from == role {
			r.own(m)
		} else {
			r.peer(m)
		}
	}
	return r
}

// TestC294_Captures replays streams of C programs: for each side of each connection an
// engine takes the place of that side. It reads the right bytes, writes to the same
// places, advertises the same buffers in the same slots, and ends in the same way.
func TestC294_Captures(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(captures + "/*.pcap")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	total := 0
	for _, f := range files {
		name := filepath.Base(f)
		conversations := readCapture(t, name)
		if strings.HasPrefix(name, "example-") {
			if len(conversations) != 0 {
				t.Errorf("%s: %d streams", name, len(conversations))
			}
			continue
		}
		if len(conversations) == 0 {
			t.Errorf("%s: no stream", name)
		}
		for i, c := range conversations {
			total++
			for role := range 2 {
				if name == "edge-bigendian-script-peer.pcap" && !twoHalves(c, role) {
					continue // the peer that was a script had no ring of two halves
				}
				r := replayAs(t, name, c, role)
				if !bytes.Equal(r.got, r.want) {
					t.Errorf("%s connection %d role %d: read %d bytes that are not the %d of the capture", name, i, role, len(r.got), len(r.want))
				}
				if !slices.Equal(r.data, r.cData) {
					t.Errorf("%s connection %d role %d: wrote to %v, captured %v", name, i, role, r.data, r.cData)
				}
				n := min(len(r.updates), len(r.cUpdates))
				if !slices.Equal(r.updates[:n], r.cUpdates[:n]) || len(r.cUpdates)-n > 2 {
					t.Errorf("%s connection %d role %d: updates\n%v\ncaptured\n%v", name, i, role, r.updates, r.cUpdates)
				}
				if !slices.Equal(r.maps, r.cMaps) || !slices.Equal(r.writes, r.cWrites) {
					t.Errorf("%s connection %d role %d: maps %v and %v, captured %v and %v", name, i, role, r.maps, r.writes, r.cMaps, r.cWrites)
				}
				if strings.HasPrefix(name, "rstream") && name != "rstream-blocking-20000.pcap" {
					// With -T v every program sends a running counter.
					for j, b := range r.got {
						if b != byte(j) {
							t.Fatalf("%s role %d: byte %d is %d", name, role, j, b)
						}
					}
				}
				t.Logf("%s connection %d role %d: %d bytes in, %d updates, %d of C's messages after its end, EOF %v, events %b", name, i, role, len(r.got), len(r.updates), r.skip, r.eof, r.events)
			}
		}
	}
	if total < 14 {
		t.Errorf("%d streams", total)
	}
}

// twoHalves reports whether all data to a role went to the two halves of a ring.
func twoHalves(c *conversation, role int) bool {
	h := &c.hello[role]
	for _, m := range c.messages {
		if m.from != role && m.imm && m.word.op() == wordData && (m.key != h.BufKey || m.addr < h.BufAddr || m.addr+uint64(len(m.data)) > h.BufAddr+2*uint64(h.BufLen)) {
			return false
		}
	}
	return true
}

// TestHelloCaptured: the hellos of the captures parse, and come out as they went in.
func TestHelloCaptured(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"rstream-small-then-wrap-ipv4.pcap", "rstream-wrap-ipv6.pcap", "riostream-ipv4.pcap", "edge-bigendian-script-peer.pcap"} {
		for _, c := range readCapture(t, name) {
			for side := range 2 {
				h := &c.hello[side]
				if b := h.Append(nil); !bytes.Equal(b, c.private[side][:len(b)]) {
					t.Errorf("%s: %x, captured %x", name, b, c.private[side][:len(b)])
				}
			}
		}
	}
	c := readCapture(t, "rstream-small-then-wrap-ipv4.pcap")[0]
	if want := (Hello{Flags: FlagIOMap, Credits: 384, SGLAddr: 0x564772392000, SGLKey: 0x309, SGLLen: 2, BufAddr: 0x564772394000, BufKey: 0x40e, BufLen: 4096}); c.hello[0] != want {
		t.Errorf("client %+v", c.hello[0])
	}
	if want := (Hello{Flags: FlagIOMap, Credits: 384, SGLAddr: 0x7f3678006000, SGLKey: 0x30b, SGLLen: 2, BufAddr: 0x7f3678008000, BufKey: 0x4da, BufLen: 4096}); c.hello[1] != want {
		t.Errorf("server %+v", c.hello[1])
	}
}
