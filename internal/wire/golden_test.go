package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// golden is a packet that a real device sent.
type golden struct {
	name string
	ip   []byte // from IP header to ICRC
	Datagram
}

// vectors reads testdata/vectors.txt; grh has the packets of RoCEv1.
func vectors(tb testing.TB) (ip, grh []golden) {
	tb.Helper()
	text, err := os.ReadFile("testdata/vectors.txt")
	if err != nil {
		tb.Fatal(err)
	}
	name := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "#"); ok {
			name = strings.TrimSpace(rest)
			continue
		}
		b, err := hex.DecodeString(line)
		if err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
		g := golden{name: name, ip: b}
		if b[0]>>4 == 6 && b[6] == 0x1B {
			grh = append(grh, g)
			continue
		}
		var ok bool
		if g.Datagram, ok = ParseIP(b); !ok {
			tb.Fatalf("%s: not a UDP datagram", name)
		}
		ip = append(ip, g)
	}
	return ip, grh
}

const captures = "../../testdata/captures"

// captured reads all captures; others counts the frames that are not RoCE.
func captured(tb testing.TB) (all []golden, others map[string]int) {
	tb.Helper()
	others = map[string]int{}
	err := filepath.WalkDir(captures, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".pcap" {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		r, err := NewPcapReader(bufio.NewReader(f))
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(captures, path)
		for {
			_, frame, err := r.Next()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			frame = bytes.Clone(frame)
			d, ok := ParseFrame(frame)
			if !ok || d.Dst.Port() != Port {
				others[name]++
				continue
			}
			all = append(all, golden{name, frame[etherLen:], d})
		}
	})
	if err != nil {
		tb.Fatal(err)
	}
	return all, others
}

// badICRC finds the packet of cap3.pcap that was sent with a wrong identification on
// purpose: its ICRC fits no packet with the don't-fragment flag and its own
// identification.
const badICRC = "cap3.pcap"

func TestVectors(t *testing.T) {
	t.Parallel()
	ip, grh := vectors(t)
	if len(ip) != 32 || len(grh) != 2 {
		t.Fatalf("%d packets and %d of RoCEv1, want 32 and 2", len(ip), len(grh))
	}
	for _, g := range ip {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			checkGolden(t, g)
		})
	}
	for _, g := range grh {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			checkGRH(t, g.ip)
		})
	}
}

func TestCaptures(t *testing.T) {
	t.Parallel()
	all, others := captured(t)
	if len(others) != 1 || others[filepath.Join("rsockets", "example-mckey.pcap")] != 6 {
		t.Errorf("frames that are not RoCE: %v", others)
	}
	bad, opcodes := 0, map[Opcode]int{}
	for _, g := range all {
		f := NewFlow(g.Src, g.Dst)
		if id, ok := f.Check(g.Payload, g.ID); g.name == badICRC && (!ok || id != g.ID) {
			bad++
			continue
		}
		opcodes[Opcode(g.Payload[0])]++
		checkGolden(t, g)
	}
	if bad != 1 {
		t.Errorf("%d packets with a wrong ICRC, want 1", bad)
	}
	t.Logf("%d packets, %d opcodes: %v", len(all), len(opcodes), opcodes)
	if len(all) < 267 || len(opcodes) < 20 {
		t.Errorf("only %d packets and %d opcodes", len(all), len(opcodes))
	}
}

// checkGolden decodes and encodes one packet, verifies its ICRC in every way, and
// refuses every truncation.
func checkGolden(t *testing.T, g golden) {
	t.Helper()
	body := g.Payload[:len(g.Payload)-ICRCLen]
	var p Packet
	if err := p.Decode(body); err != nil {
		t.Fatalf("%s: %v", g.name, err)
	}
	again := p.AppendTo(nil)
	if !bytes.Equal(again, body) {
		t.Fatalf("%s: %v encodes to\n%x, want\n%x", g.name, p.Opcode, again, body)
	}

	f := NewFlow(g.Src, g.Dst)
	again = append(again, 0, 0, 0, 0)
	f.Put(again, g.ID)
	if !bytes.Equal(again, g.Payload) {
		t.Fatalf("%s: ICRC %x, want %x", g.name, again[len(body):], g.Payload[len(body):])
	}
	for _, hint := range []uint16{g.ID, g.ID + 1, 0, 0xFFFF} {
		if id, ok := f.Check(g.Payload, hint); !ok || id != g.ID {
			t.Fatalf("%s: Check with hint %#x gives %#x, %v, want %#x", g.name, hint, id, ok, g.ID)
		}
	}
	checkTruncations(t, g, &f)
}

// checkTruncations: a packet cut short is refused by Decode if it lacks a header or is
// no longer a multiple of four bytes, or where the opcode has no payload; in any case
// the ICRC refuses it, because the lengths before it have changed too.
func checkTruncations(t *testing.T, g golden, f *Flow) {
	t.Helper()
	var p Packet
	for n := range len(g.Payload) {
		cut := g.Payload[:n:n]
		// 15 of 32 bits of the ICRC are given up where the identification is not
		// known, so that a cut may fit some identification, but not this one.
		if id, ok := f.Check(cut, g.ID); ok && id == g.ID {
			t.Fatalf("%s: cut to %d bytes has a right ICRC", g.name, n)
		}
	}
	body := len(g.Payload) - ICRCLen
	for n := range body {
		err := p.Decode(g.Payload[:n:n])
		o := Opcode(g.Payload[0])
		pad := int(g.Payload[1] >> 4 & 3)
		consistent := o.Has(HasPayload) && n >= o.HeaderLen() && (n-o.HeaderLen())%4 == 0 &&
			n-o.HeaderLen() >= pad && (n > o.HeaderLen() || pad == 0)
		switch {
		case n < BTHLen:
			if err != ErrShort {
				t.Fatalf("%s: cut to %d bytes: %v, want %v", g.name, n, err, ErrShort)
			}
		case consistent:
			if err != nil {
				t.Fatalf("%s: cut to %d bytes, which the ICRC must refuse: %v", g.name, n, err)
			}
		case err != ErrLength:
			t.Fatalf("%s: cut to %d bytes: %v, want %v", g.name, n, err, ErrLength)
		}
		if err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("%v is not ErrMalformed", err)
		}
	}
}

// checkGRH verifies a packet of RoCEv1: the mask of its GRH is that of IPv6.
func checkGRH(t *testing.T, b []byte) {
	t.Helper()
	body := b[40 : len(b)-ICRCLen]
	var p Packet
	if err := p.Decode(body); err != nil {
		t.Fatal(err)
	}
	if again := p.AppendTo(nil); !bytes.Equal(again, body) {
		t.Fatalf("encodes to %x, want %x", again, body)
	}
	m := bytes.Clone(b[:len(b)-ICRCLen])
	m[0], m[1], m[2], m[3], m[7], m[44] = 0x6F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF
	if sum := ^advance(afterOnes, m); sum != binary.LittleEndian.Uint32(b[len(b)-ICRCLen:]) {
		t.Fatalf("ICRC %08x, want bytes %x", sum, b[len(b)-ICRCLen:])
	}
}

// The pcap writer gives frames that say what was meant, with the header checksum that a
// router would want, and the reader gives them back.
func TestPcap(t *testing.T) {
	t.Parallel()
	ip, _ := vectors(t)
	var file bytes.Buffer
	w, err := NewPcapWriter(&file)
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range ip {
		if err := w.Write(1_700_000_000_123_456_789, &g.Datagram); err != nil {
			t.Fatalf("packet %d: %v", i, err)
		}
	}
	if err := w.Write(0, &Datagram{Src: ip[0].Src, Dst: netip.AddrPort{}}); err == nil {
		t.Error("a datagram without address was written")
	}
	r, err := NewPcapReader(&file)
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range ip {
		at, frame, err := r.Next()
		if err != nil {
			t.Fatalf("packet %d: %v", i, err)
		}
		d, ok := ParseFrame(frame)
		if !ok || at != 1_700_000_000_123_456_789 {
			t.Fatalf("packet %d: %v at %d", i, ok, at)
		}
		if d.Src != g.Src || d.Dst != g.Dst || d.ID != g.ID || d.TOS != g.TOS || d.TTL != g.TTL ||
			!bytes.Equal(d.Payload, g.Payload) {
			t.Fatalf("packet %d: %+v, want %+v", i, d, g.Datagram)
		}
		// Soft-RoCE's header checksums are right, and so must ours be.
		if g.ip[0] == 0x45 && !bytes.Equal(frame[etherLen:etherLen+20], g.ip[:20]) {
			t.Errorf("%s: IP header %x, want %x", g.name, frame[etherLen:etherLen+20], g.ip[:20])
		}
	}
	if _, _, err := r.Next(); err != io.EOF {
		t.Fatalf("after the last packet: %v", err)
	}
}

// Files of either byte order and resolution are read, and what is not such a file, or is
// cut short, is an error and not the end.
func TestPcapReader(t *testing.T) {
	t.Parallel()
	ip, _ := vectors(t)
	frame, err := AppendFrame(nil, &ip[0].Datagram)
	if err != nil {
		t.Fatal(err)
	}
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for magic, want := range map[uint32]time.Duration{
			pcapMagicMicro: 5*time.Second + 7*time.Microsecond, pcapMagicNano: 5*time.Second + 7,
		} {
			header := func(magic, link uint32) []byte {
				b := order.AppendUint32(nil, magic)
				b = append(b, make([]byte, 16)...)
				return order.AppendUint32(b, link)
			}
			file := header(magic, pcapEthernet)
			for _, v := range []uint32{5, 7, uint32(len(frame)), uint32(len(frame))} {
				file = order.AppendUint32(file, v)
			}
			file = append(file, frame...)
			for n := range len(file) + 1 {
				r, err := NewPcapReader(bytes.NewReader(file[:n]))
				if n < 24 {
					if err == nil {
						t.Fatalf("header cut to %d bytes is taken", n)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				at, got, err := r.Next()
				switch {
				case n == 24 && err != io.EOF:
					t.Fatalf("no frame: %v", err)
				case n > 24 && n < len(file) && (err == nil || err == io.EOF):
					t.Fatalf("file cut to %d bytes: %v", n, err)
				case n == len(file) && (err != nil || at != want || !bytes.Equal(got, frame)):
					t.Fatalf("%v, %v, %x", at, err, got)
				}
			}
			if _, err := NewPcapReader(bytes.NewReader(header(magic, 101))); err == nil {
				t.Error("another link type is taken")
			}
			if _, err := NewPcapReader(bytes.NewReader(header(magic+1, pcapEthernet))); err == nil {
				t.Error("another magic number is taken")
			}
			long := order.AppendUint32(header(magic, pcapEthernet), 0)
			for _, v := range []uint32{0, 1 << 30, 1 << 30} {
				long = order.AppendUint32(long, v)
			}
			r, err := NewPcapReader(bytes.NewReader(long))
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := r.Next(); err == nil || err == io.EOF {
				t.Errorf("a frame of 1 GiB: %v", err)
			}
		}
	}
}

// Frames that hold no whole UDP datagram are told apart.
func TestParseFrame(t *testing.T) {
	t.Parallel()
	ip, _ := vectors(t)
	for _, g := range ip {
		frame, err := AppendFrame(nil, &g.Datagram)
		if err != nil {
			t.Fatal(err)
		}
		for n := range frame {
			if _, ok := ParseFrame(frame[:n]); ok {
				t.Fatalf("%s: cut to %d bytes is taken", g.name, n)
			}
		}
		if d, ok := ParseFrame(append(bytes.Clone(frame), 1, 2, 3)); !ok || !bytes.Equal(d.Payload, g.Payload) {
			t.Errorf("%s: Ethernet padding matters", g.name)
		}
		bad := map[int]byte{12: 0x86, 14: 0x46, 14 + 9: 6, 14 + 6: 0x60, 14 + 25: 7} // type, IHL, protocol, more fragments, UDP length
		if g.ip[0]>>4 == 6 {
			bad = map[int]byte{13: 0, 14: 0x70, 14 + 6: 58, 14 + 45: 7}
		}
		for at, v := range bad {
			b := bytes.Clone(frame)
			b[at] = v
			if _, ok := ParseFrame(b); ok {
				t.Errorf("%s: byte %d as %#x is taken", g.name, at, v)
			}
		}
	}
}

// failWriter fails after a number of writes.
type failWriter int

func (w *failWriter) Write(b []byte) (int, error) {
	if *w--; *w < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(b), nil
}

func TestPcapWriterError(t *testing.T) {
	t.Parallel()
	ip, _ := vectors(t)
	none, one := failWriter(0), failWriter(1)
	if _, err := NewPcapWriter(&none); err != io.ErrClosedPipe {
		t.Errorf("header: %v", err)
	}
	w, err := NewPcapWriter(&one)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(0, &ip[0].Datagram); err != io.ErrClosedPipe {
		t.Errorf("frame: %v", err)
	}
}
