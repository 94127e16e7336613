package ibcm

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
)

// capturedMAD is a CM message that the Linux kernel, or a program that talks to it,
// sent.
type capturedMAD struct {
	name     string
	mad      []byte
	src, dst netip.Addr
}

func capturedMADs(tb testing.TB) (all []capturedMAD) {
	tb.Helper()
	const dir = "../../testdata/captures"
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".pcap" {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		r, err := wire.NewPcapReader(bufio.NewReader(f))
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		for {
			_, frame, err := r.Next()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			d, ok := wire.ParseFrame(frame)
			if !ok || d.Dst.Port() != wire.Port {
				continue
			}
			var p wire.Packet
			if err := p.Decode(d.Payload[:len(d.Payload)-wire.ICRCLen]); err != nil {
				return err
			}
			if p.DestQP == ib.QPNGSI {
				all = append(all, capturedMAD{name, bytes.Clone(p.Payload), d.Src.Addr(), d.Dst.Addr()})
			}
		}
	})
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

// All messages that were recorded decode, encode to the same bytes, and carry the
// addresses that they came from.
func TestMessageCaptures(t *testing.T) {
	t.Parallel()
	seen := map[Attr]int{}
	for i, c := range capturedMADs(t) {
		m, err := Parse(c.mad)
		if err != nil {
			t.Errorf("%s, message %d: %v", c.name, i, err)
			continue
		}
		seen[m.Attr()]++
		var again [MADLen]byte
		m.Encode(&again)
		if !bytes.Equal(again[:], c.mad) {
			t.Errorf("%s, message %d: %v encodes to\n%x, want\n%x", c.name, i, m.Attr(), again, c.mad)
		}
		var private []byte
		switch m := m.(type) {
		case *REQ:
			private = m.Private[:]
			if m.Primary.LocalGID.Addr() != c.src || m.Primary.RemoteGID.Addr() != c.dst {
				t.Errorf("%s: path from %v to %v, packet from %v to %v", c.name,
					m.Primary.LocalGID, m.Primary.RemoteGID, c.src, c.dst)
			}
			if !m.MTU.Valid() || m.PKey != ib.PKeyDefault || m.Alternate.LocalLID != 0 || !m.ServiceID.IP() {
				t.Errorf("%s: %+v", c.name, m)
			}
		case *SIDRREQ:
			private = m.Private[:]
		}
		if private != nil {
			checkCMA(t, c, private)
		}
		for n := range MADLen {
			if _, err := Parse(c.mad[:n]); err != ErrSize {
				t.Fatalf("%s: cut to %d bytes: %v", c.name, n, err)
			}
		}
		if _, err := Parse(append(bytes.Clone(c.mad), 0)); err != ErrSize {
			t.Fatalf("%s: one byte more: %v", c.name, err)
		}
	}
	t.Logf("%v", seen)
	for _, a := range []Attr{AttrREQ, AttrREJ, AttrREP, AttrRTU, AttrDREQ, AttrDREP, AttrSIDRREQ, AttrSIDRREP} {
		if seen[a] == 0 {
			t.Errorf("no %v among the captures", a)
		}
	}
}

func checkCMA(t *testing.T, c capturedMAD, private []byte) {
	t.Helper()
	var h CMAHeader
	if err := h.Decode(private); err != nil {
		t.Errorf("%s: %v", c.name, err)
		return
	}
	if h.Src != c.src || h.Dst != c.dst {
		t.Errorf("%s: header from %v to %v, packet from %v to %v", c.name, h.Src, h.Dst, c.src, c.dst)
	}
	var again [CMAHeaderLen]byte
	if err := h.Encode(again[:]); err != nil || !bytes.Equal(again[:], private[:CMAHeaderLen]) {
		t.Errorf("%s: %v encodes to %x, %v, want %x", c.name, h, again, err, private[:CMAHeaderLen])
	}
}

// The first request of cap1.pcap, field by field as a dissector shows it.
func TestMessageREQ(t *testing.T) {
	t.Parallel()
	for _, c := range capturedMADs(t) {
		if c.name != "cap1.pcap" {
			continue
		}
		var m REQ
		if err := m.Decode(c.mad); err != nil {
			t.Fatal(err)
		}
		a, b := netip.MustParseAddr("10.9.0.3"), netip.MustParseAddr("10.9.0.2")
		want := REQ{
			Header:             Header{TID: 0x02_5e358e9d},
			LocalCommID:        0x9d8e355e,
			ServiceID:          Service(ib.PortSpaceTCP, 7174),
			LocalGUID:          0x505400fffe000002,
			LocalQPN:           0x11,
			ResponderResources: 1,
			InitiatorDepth:     1,
			RemoteTimeout:      20,
			LocalTimeout:       20,
			StartingPSN:        0xc18404,
			RetryCount:         7,
			RNRRetryCount:      7,
			MaxCMRetries:       15,
			PKey:               0xffff,
			MTU:                ib.MTU1024,
			Primary: PathInfo{
				LocalLID: 0xffff, RemoteLID: 0xffff,
				LocalGID: ib.GIDFromAddr(a), RemoteGID: ib.GIDFromAddr(b),
				FlowLabel: 0x8ea4d, HopLimit: 64, AckTimeout: 19,
			},
		}
		h := CMAHeader{Src: a, Dst: b, SrcPort: binary.BigEndian.Uint16(c.mad[headerLen+142:])}
		if err := h.Encode(want.Private[:]); err != nil {
			t.Fatal(err)
		}
		if m != want {
			t.Errorf("got  %+v\nwant %+v", m, want)
		}
		return
	}
	t.Fatal("cap1.pcap has no message")
}

func TestMessageRefused(t *testing.T) {
	t.Parallel()
	var good [MADLen]byte
	new(RTU).Encode(&good)
	for _, c := range []struct {
		name string
		off  int
		v    byte
		want error
	}{
		{"base version", 0, 2, ErrClass},
		{"class", 1, 0x03, ErrClass},
		{"class version", 2, 1, ErrClass},
		{"method", 3, 0x81, ErrMethod},
		{"attribute", 17, 0x0F, ErrAttr},
		{"attribute", 17, 0x1B, ErrAttr},
		{"attribute", 16, 1, ErrAttr},
	} {
		b := good
		b[c.off] = c.v
		if _, err := Parse(b[:]); err != c.want || !errors.Is(err, ErrMessage) || err.Error() == "ibcm: " {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	for a := AttrREQ; a <= AttrAPR; a++ {
		m := newMessage(a)
		if err := m.Decode(good[:]); a != AttrRTU && err != ErrAttr || a == AttrRTU && err != nil {
			t.Errorf("an RTU as %v: %v", a, err)
		}
	}
	if s := Attr(0x1B).String(); s != "attribute 0x1b" || AttrSIDRREP.String() != "SIDR_REP" {
		t.Error(s)
	}
	for _, m := range []Message{&REJ{ARILen: 73}, &APR{InfoLen: 73}, &SIDRREP{InfoLen: 73}} {
		var b [MADLen]byte
		m.Encode(&b)
		if _, err := Parse(b[:]); err != ErrInfoLen {
			t.Errorf("%v with 73 bytes of information: %v", m.Attr(), err)
		}
	}
}

func TestCMAHeader(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParseAddr("10.9.0.3"), netip.MustParseAddr("fd00:9::3")
	var b [CMAHeaderLen]byte
	for _, h := range []CMAHeader{{Src: v4, Dst: v6}, {Src: v4}, {Dst: v4}, {}} {
		if err := h.Encode(b[:]); err != ErrCMAHeader {
			t.Errorf("%v: %v", h, err)
		}
	}
	for _, a := range []netip.Addr{v4, v6} {
		h, got := CMAHeader{Src: a, Dst: a.Next(), SrcPort: 7174}, CMAHeader{}
		if err := h.Encode(b[:CMAHeaderLen-1]); err != ErrCMAHeader {
			t.Errorf("into a short buffer: %v", err)
		}
		if err := h.Encode(b[:]); err != nil {
			t.Fatal(err)
		}
		if err := got.Decode(b[:]); err != nil || got != h {
			t.Errorf("got %v, %v, want %v", got, err, h)
		}
		for n := range len(b) {
			if err := got.Decode(b[:n]); err != ErrCMAHeader {
				t.Errorf("cut to %d bytes: %v", n, err)
			}
		}
	}
	for _, c := range [][2]byte{{1, 0x40}, {0, 0x50}, {0, 0}} {
		copy(b[:], c[:])
		if err := new(CMAHeader).Decode(b[:]); err != ErrCMAHeader {
			t.Errorf("version and family %x: %v", c, err)
		}
	}
}

func TestServiceID(t *testing.T) {
	t.Parallel()
	s := Service(ib.PortSpaceTCP, 7174)
	if s != 0x0000000001061c06 || s.PortSpace() != ib.PortSpaceTCP || s.Port() != 7174 || !s.IP() || s.String() != "TCP 7174" {
		t.Errorf("%#x %v", uint64(s), s)
	}
	for _, s := range []ServiceID{0x1_0106_1c06, 0x0000_0001_013f_1c06, 0x1_0000_0106_1c06} {
		if s.IP() {
			t.Errorf("%v counts as a port", s)
		}
	}
	if s := ServiceID(0x10_0000_0000_0001); s.String() != "0x0010000000000001" {
		t.Error(s)
	}
}

// Decoding and encoding a message whose type is known does not allocate.
func TestMessageAllocs(t *testing.T) {
	var m REQ
	var b [MADLen]byte
	m.Encode(&b)
	if n := testing.AllocsPerRun(100, func() {
		_ = m.Decode(b[:])
		m.Encode(&b)
		_ = m.Decode(b[1:])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzParse: whatever Parse takes comes back from its encoding unchanged.
func FuzzParse(f *testing.F) {
	for _, c := range capturedMADs(f) {
		f.Add(c.mad)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for a := AttrREQ; a <= AttrAPR; a++ {
		var b [MADLen]byte
		newMessage(a).Encode(&b)
		for i := headerLen; i < MADLen; i++ {
			b[i] = byte(rnd.Uint32())
		}
		f.Add(b[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			if !errors.Is(err, ErrMessage) {
				t.Fatalf("%v is not ErrMessage", err)
			}
			return
		}
		var first, second [MADLen]byte
		m.Encode(&first)
		again, err := Parse(first[:])
		if err != nil {
			t.Fatalf("%v does not parse again: %v", m.Attr(), err)
		}
		again.Encode(&second)
		if first != second {
			t.Fatalf("%v changes: %x, %x", m.Attr(), first, second)
		}
		for i := range b {
			if first[i]&^b[i] != 0 {
				t.Fatalf("%v: byte %d has bits that were not there", m.Attr(), i)
			}
		}
		var h CMAHeader
		if h.Decode(b[headerLen:]) == nil && !h.Src.Is4In6() && !h.Dst.Is4In6() {
			var e [CMAHeaderLen]byte
			var again CMAHeader
			if err := h.Encode(e[:]); err != nil {
				t.Fatalf("%v: %v", h, err)
			}
			if err := again.Decode(e[:]); err != nil || again != h {
				t.Fatalf("%v becomes %v, %v", h, again, err)
			}
		}
	})
}

func BenchmarkMessageREQ(b *testing.B) {
	var m REQ
	var buf [MADLen]byte
	m.Encode(&buf)
	for b.Loop() {
		if err := m.Decode(buf[:]); err != nil {
			b.Fatal(err)
		}
		m.Encode(&buf)
	}
}
