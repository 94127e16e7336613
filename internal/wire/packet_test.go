package wire

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// randomPacket fills every header that o has, and no other field.
func randomPacket(r *rand.Rand, o Opcode) Packet {
	p := Packet{
		Opcode: o, Solicited: r.IntN(2) == 0, MigReq: r.IntN(2) == 0, FECN: r.IntN(2) == 0, BECN: r.IntN(2) == 0,
		AckReq: r.IntN(2) == 0, PKey: ib.PKey(r.Uint32()), DestQP: ib.QPN(r.Uint32()) & ib.QPNMask,
		PSN: ib.PSN(r.Uint32()) & ib.PSNMask,
	}
	f := o.Flags()
	if f&HasRETH != 0 {
		p.RETH = RETH{r.Uint64(), ib.RKey(r.Uint32()), r.Uint32()}
	}
	if f&HasAETH != 0 {
		p.AETH = AETH{Syndrome(r.Uint32()), r.Uint32() & 0xFFFFFF}
	}
	if f&HasAtomic != 0 {
		p.Atomic = AtomicETH{r.Uint64(), ib.RKey(r.Uint32()), r.Uint64(), r.Uint64()}
	}
	if f&HasAtomicAck != 0 {
		p.AtomicAck = r.Uint64()
	}
	if f&HasImm != 0 {
		p.Imm = r.Uint32()
	}
	if f&HasInv != 0 {
		p.InvRKey = ib.RKey(r.Uint32())
	}
	if f&HasDETH != 0 {
		p.DETH = DETH{ib.QKey(r.Uint32()), ib.QPN(r.Uint32()) & ib.QPNMask}
	}
	switch {
	case f&HasPayload != 0:
		p.Payload = make([]byte, r.IntN(70))
	case f&HasReserved16 != 0:
		p.Payload = make([]byte, CNPLen)
	}
	for i := range p.Payload {
		p.Payload[i] = byte(r.Uint32())
	}
	return p
}

func equal(a, b *Packet) bool {
	x, y := *a, *b
	x.Payload, y.Payload = nil, nil
	return bytes.Equal(a.Payload, b.Payload) && headersEqual(&x, &y)
}

// headersEqual compares all fields but the payload; a new field of Packet that is not
// comparable would not compile here.
func headersEqual(a, b *Packet) bool {
	type headers struct {
		o              Opcode
		se, m, f, b, a bool
		pkey           ib.PKey
		qp             ib.QPN
		psn            ib.PSN
		reth           RETH
		aeth           AETH
		atomic         AtomicETH
		ack            uint64
		imm            uint32
		inv            ib.RKey
		deth           DETH
	}
	of := func(p *Packet) headers {
		return headers{p.Opcode, p.Solicited, p.MigReq, p.FECN, p.BECN, p.AckReq, p.PKey, p.DestQP, p.PSN,
			p.RETH, p.AETH, p.Atomic, p.AtomicAck, p.Imm, p.InvRKey, p.DETH}
	}
	return of(a) == of(b)
}

// Every supported opcode, with random fields and payloads of all pads, comes back.
func TestPacketRoundTrip(t *testing.T) {
	t.Parallel()
	const seed = 20261129
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 256 {
		o := Opcode(i)
		if !o.Has(Supported) {
			continue
		}
		for range 50 {
			p := randomPacket(r, o)
			prefix := []byte("before")
			b := p.AppendTo(prefix)
			if !bytes.HasPrefix(b, prefix) {
				t.Fatalf("%v: what was before is gone", o)
			}
			b = b[len(prefix):]
			if len(b)%4 != 0 || len(b) < o.HeaderLen() {
				t.Fatalf("%v: %d bytes", o, len(b))
			}
			var q Packet
			if err := q.Decode(b); err != nil {
				t.Fatalf("seed %d: %v: %v", seed, o, err)
			}
			if !equal(&p, &q) {
				t.Fatalf("seed %d: got  %+v\nwant %+v", seed, q, p)
			}
			if cap(q.Payload) != len(q.Payload) {
				t.Fatalf("%v: appending to the payload would write into the packet", o)
			}
			if o.Has(HasPayload) {
				h := p.AppendHeaders(nil, len(p.Payload))
				h = append(h, p.Payload...)
				h = append(h, make([]byte, Pad(len(p.Payload)))...)
				if !bytes.Equal(h, b) {
					t.Fatalf("%v: AppendHeaders and payload give %x, want %x", o, h, b)
				}
			}
		}
	}
}

// What a packet says of itself beyond the width of its fields is cut, and a CNP needs
// no payload.
func TestPacketEncode(t *testing.T) {
	t.Parallel()
	p := Packet{Opcode: RCAcknowledge, DestQP: 1<<24 | 5, PSN: 1<<24 | 6, AETH: AETH{AckNoLimit, 1<<24 | 7}}
	var q Packet
	if err := q.Decode(p.AppendTo(nil)); err != nil || q.DestQP != 5 || q.PSN != 6 || q.AETH != (AETH{AckNoLimit, 7}) || q.FECN || q.AckReq {
		t.Errorf("%+v, %v", q, err)
	}
	p = Packet{Opcode: CNP, BECN: true, DestQP: 0x118, PKey: ib.PKeyDefault, MigReq: true}
	b := p.AppendTo(nil)
	want := append([]byte{0x81, 0x40, 0xFF, 0xFF, 0x40, 0, 1, 0x18, 0, 0, 0, 0}, make([]byte, 16)...)
	if !bytes.Equal(b, want) || !bytes.Equal(p.AppendHeaders(nil, 0), want) {
		t.Errorf("CNP is %x, want %x", b, want)
	}
	p = Packet{Opcode: RCFlush, Payload: make([]byte, 8)}
	if b := p.AppendTo(nil); len(b) != BTHLen {
		t.Errorf("an opcode that is not supported gives %d bytes", len(b))
	}
	// Data in a packet that has none is left out.
	p = Packet{Opcode: RCReadRequest, Payload: make([]byte, 8)}
	if b := p.AppendTo(nil); len(b) != 28 {
		t.Errorf("READ_REQUEST has %d bytes", len(b))
	}
}

func TestDecodeErrors(t *testing.T) {
	t.Parallel()
	bth := func(o Opcode, flags byte, rest int) []byte {
		b := make([]byte, BTHLen+rest)
		b[0], b[1] = byte(o), flags
		copy(b[2:], []byte{0xFF, 0xFF, 0, 0, 0, 0x11, 0x80, 0, 0, 0x22})
		return b
	}
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"nothing", nil, ErrShort},
		{"eleven bytes", make([]byte, 11), ErrShort},
		{"version 1", bth(RCSendOnly, 1, 0), ErrVersion},
		{"version 15", bth(RCSendOnly, 15, 0), ErrVersion},
		{"version before opcode", bth(0xFF, 1, 0), ErrVersion},
		{"no such opcode", bth(0x95, 0, 0), ErrOpcode},
		{"RD", bth(0x44, 0, 12), ErrUnsupported},
		{"XRC", bth(0xA4, 0, 4), ErrUnsupported},
		{"FLUSH", bth(RCFlush, 0, 20), ErrUnsupported},
		{"ATOMIC_WRITE", bth(RCAtomicWrite, 0, 24), ErrUnsupported},
		{"no RETH", bth(RCWriteOnly, 0, 0), ErrLength},
		{"part of RETH", bth(RCWriteOnly, 0, 12), ErrLength},
		{"odd length", bth(RCSendOnly, 0, 5), ErrLength},
		{"pad without data", bth(RCSendOnly, 0x10, 0), ErrLength},
		{"pad and data", bth(RCSendOnly, 0x30, 4), nil},
		{"ACK with data", bth(RCAcknowledge, 0, 8), ErrLength},
		{"READ_REQUEST with data", bth(RCReadRequest, 0, 20), ErrLength},
		{"READ_REQUEST with pad", bth(RCReadRequest, 0x10, 16), ErrLength},
		{"short CNP", bth(CNP, 0, 12), ErrLength},
		{"long CNP", bth(CNP, 0, 20), ErrLength},
		{"empty SEND", bth(RCSendOnly, 0, 0), nil},
	} {
		p := Packet{Payload: []byte("old")}
		err := p.Decode(c.b)
		if err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err != nil && (!errors.Is(err, ErrMalformed) || err.Error() == "wire: ") {
			t.Errorf("%s: %q is not ErrMalformed", c.name, err)
		}
		switch err {
		case ErrOpcode, ErrUnsupported, ErrLength:
			if p.DestQP != 0x11 || p.PSN != 0x22 || !p.AckReq || p.PKey != 0xFFFF || p.Payload != nil {
				t.Errorf("%s: BTH is not valid: %+v", c.name, p)
			}
		}
	}
}

// Reserved bits and pad bytes that are not 0 do not matter.
func TestReservedBits(t *testing.T) {
	t.Parallel()
	p := Packet{Opcode: UDSendOnly, PKey: 0xFFFF, DestQP: 1, PSN: 2, DETH: DETH{3, 4}, Payload: []byte{1, 2, 3}}
	b := p.AppendTo(nil)
	b[4] |= 0x3F
	b[8] |= 0x7F
	b[16] |= 0xFF
	b[len(b)-1] = 0xFF
	var q Packet
	if err := q.Decode(b); err != nil || !equal(&p, &q) {
		t.Errorf("%v: %+v, want %+v", err, q, p)
	}
}

func TestPacketAllocs(t *testing.T) {
	buf := make([]byte, 0, 8192)
	p := Packet{Opcode: RCWriteOnlyImm, Payload: make([]byte, 4095)}
	cnp := Packet{Opcode: CNP, BECN: true}
	bad := []byte{0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	var q Packet
	if n := testing.AllocsPerRun(100, func() {
		b := p.AppendTo(buf)
		if err := q.Decode(b); err != nil {
			t.Fatal(err)
		}
		cnp.AppendTo(buf)
		_ = q.Decode(bad)
		_ = q.Decode(bad[:3])
		_ = q.Decode(b[:20])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzDecode: whatever Decode takes comes back from its encoding unchanged, but for
// reserved bits and the bytes of the pad.
func FuzzDecode(f *testing.F) {
	ip, grh := vectors(f)
	all, _ := captured(f)
	seen := map[[2]byte]bool{} // one of each opcode and set of flags will do
	for _, g := range append(ip, all...) {
		if kind := [2]byte(g.Payload); !seen[kind] {
			seen[kind] = true
			f.Add(g.Payload[:len(g.Payload)-ICRCLen])
		}
	}
	for _, g := range grh {
		f.Add(g.ip[40 : len(g.ip)-ICRCLen])
	}
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 256 {
		if o := Opcode(i); o.Has(Supported) {
			p := randomPacket(r, o)
			f.Add(p.AppendTo(nil))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, q Packet
		err := p.Decode(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("%v is not ErrMalformed", err)
			}
			return
		}
		again := p.AppendTo(nil)
		if err := q.Decode(again); err != nil || !equal(&p, &q) {
			t.Fatalf("%v: %+v becomes %+v", err, p, q)
		}
		// Clear what is reserved, and nothing else may differ.
		b = bytes.Clone(b)
		b[4] &= bitFECN | bitBECN
		b[8] &= bitAckReq
		if p.Opcode.Has(HasDETH) {
			b[16] = 0
		}
		clear(b[len(b)-int(b[1]>>4&3):])
		if !bytes.Equal(again, b) {
			t.Fatalf("%v encodes to\n%x, want\n%x", p.Opcode, again, b)
		}
	})
}

// FuzzCheck: no datagram does any harm, and what Put has filled in is right.
func FuzzCheck(f *testing.F) {
	ip, _ := vectors(f)
	for _, g := range ip {
		f.Add(g.Payload, g.ID)
	}
	f.Add([]byte{}, uint16(1))
	f.Add(make([]byte, BTHLen+ICRCLen), uint16(2))
	f.Fuzz(func(t *testing.T, b []byte, id uint16) {
		b = bytes.Clone(b) // the fuzzer's own must not be written to
		for _, flow := range []Flow{flow4Test, flow6Test, {}} {
			flow.Check(b, id)
			flow.Put(b, id)
			if got, ok := flow.Check(b, id^0x5A5A); flow.fits(b) && (!ok || flow.kind == flow4 && got != id) {
				t.Fatalf("Check gives %#x, %v after Put", got, ok)
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	for _, c := range benchPackets {
		b.Run(c.name, func(b *testing.B) {
			buf := c.p.AppendTo(nil)
			var p Packet
			for b.Loop() {
				if err := p.Decode(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendHeaders(b *testing.B) {
	for _, c := range benchPackets {
		b.Run(c.name, func(b *testing.B) {
			buf := make([]byte, 0, 128)
			for b.Loop() {
				c.p.AppendHeaders(buf, len(c.p.Payload))
			}
		})
	}
}

func BenchmarkAppendTo(b *testing.B) {
	for _, c := range benchPackets {
		b.Run(c.name, func(b *testing.B) {
			buf := make([]byte, 0, 8192)
			for b.Loop() {
				c.p.AppendTo(buf)
			}
		})
	}
}

var benchPackets = []struct {
	name string
	p    Packet
}{
	{"ACK", Packet{Opcode: RCAcknowledge}},
	{"SEND64", Packet{Opcode: RCSendOnly, Payload: make([]byte, 64)}},
	{"WRITE4096", Packet{Opcode: RCWriteOnly, Payload: make([]byte, 4096)}},
}
