package wire

import (
	"strings"
	"testing"
)

// The table of rocev2: opcode, name, header bytes; written down apart from the code.
var opcodeRows = []struct {
	op   Opcode
	name string
	len  int
}{
	{0x00, "RC SEND_FIRST", 12}, {0x01, "RC SEND_MIDDLE", 12}, {0x02, "RC SEND_LAST", 12},
	{0x03, "RC SEND_LAST_WITH_IMMEDIATE", 16}, {0x04, "RC SEND_ONLY", 12}, {0x05, "RC SEND_ONLY_WITH_IMMEDIATE", 16},
	{0x06, "RC RDMA_WRITE_FIRST", 28}, {0x07, "RC RDMA_WRITE_MIDDLE", 12}, {0x08, "RC RDMA_WRITE_LAST", 12},
	{0x09, "RC RDMA_WRITE_LAST_WITH_IMMEDIATE", 16}, {0x0A, "RC RDMA_WRITE_ONLY", 28},
	{0x0B, "RC RDMA_WRITE_ONLY_WITH_IMMEDIATE", 32}, {0x0C, "RC RDMA_READ_REQUEST", 28},
	{0x0D, "RC RDMA_READ_RESPONSE_FIRST", 16}, {0x0E, "RC RDMA_READ_RESPONSE_MIDDLE", 12},
	{0x0F, "RC RDMA_READ_RESPONSE_LAST", 16}, {0x10, "RC RDMA_READ_RESPONSE_ONLY", 16}, {0x11, "RC ACKNOWLEDGE", 16},
	{0x12, "RC ATOMIC_ACKNOWLEDGE", 24}, {0x13, "RC COMPARE_SWAP", 40}, {0x14, "RC FETCH_ADD", 40},
	{0x16, "RC SEND_LAST_WITH_INVALIDATE", 16}, {0x17, "RC SEND_ONLY_WITH_INVALIDATE", 16},
	{0x1C, "RC FLUSH", 32}, {0x1D, "RC ATOMIC_WRITE", 28},
	{0x20, "UC SEND_FIRST", 12}, {0x21, "UC SEND_MIDDLE", 12}, {0x22, "UC SEND_LAST", 12},
	{0x23, "UC SEND_LAST_WITH_IMMEDIATE", 16}, {0x24, "UC SEND_ONLY", 12}, {0x25, "UC SEND_ONLY_WITH_IMMEDIATE", 16},
	{0x26, "UC RDMA_WRITE_FIRST", 28}, {0x27, "UC RDMA_WRITE_MIDDLE", 12}, {0x28, "UC RDMA_WRITE_LAST", 12},
	{0x29, "UC RDMA_WRITE_LAST_WITH_IMMEDIATE", 16}, {0x2A, "UC RDMA_WRITE_ONLY", 28},
	{0x2B, "UC RDMA_WRITE_ONLY_WITH_IMMEDIATE", 32},
	{0x64, "UD SEND_ONLY", 20}, {0x65, "UD SEND_ONLY_WITH_IMMEDIATE", 24}, {0x81, "CNP", 28},
}

func TestOpcodeTable(t *testing.T) {
	t.Parallel()
	rows := map[Opcode]bool{}
	for _, r := range opcodeRows {
		rows[r.op] = true
		if r.op.String() != r.name || r.op.HeaderLen() != r.len || !r.op.Known() {
			t.Errorf("%#x is %v with %d bytes, want %s with %d", uint8(r.op), r.op, r.op.HeaderLen(), r.name, r.len)
		}
		if want := r.op != RCFlush && r.op != RCAtomicWrite; r.op.Has(Supported) != want {
			t.Errorf("%v supported: %v", r.op, !want)
		}
	}
	for i := range 256 {
		o := Opcode(i)
		s := o.Service()
		switch {
		case !o.Known():
			if rows[o] || o.Flags() != 0 || o.HeaderLen() != 0 || !strings.HasPrefix(o.String(), "opcode 0x") {
				t.Errorf("%v: half known", o)
			}
			continue
		case s != ServiceRD && s != ServiceXRC && !rows[o]:
			t.Errorf("%v is known, and in no table", o)
		case (s == ServiceRD || s == ServiceXRC) && o.Has(Supported):
			t.Errorf("%v is supported", o)
		}
		checkFlags(t, o)
	}
}

// checkFlags: the name says the same as the flags.
func checkFlags(t *testing.T, o Opcode) {
	t.Helper()
	n, f := o.String(), o.Flags()
	one := func(flags ...Flags) bool {
		set := 0
		for _, x := range flags {
			if f&x != 0 {
				set++
			}
		}
		return set == 1
	}
	if !one(IsFirst, IsMiddle, IsLast, IsOnly) {
		t.Errorf("%v: place in the message is not clear", o)
	}
	if o == CNP {
		if f&(IsRequest|IsResponse|HasPayload) != 0 {
			t.Errorf("CNP: flags %#x", f)
		}
		return
	}
	if !one(IsRequest, IsResponse) {
		t.Errorf("%v: neither request nor response, or both", o)
	}
	if s := o.Service(); s.With(o.Operation()) != o {
		t.Errorf("%v: service %v and operation %v do not make it", o, s, o.Operation())
	}
	for _, c := range []struct {
		word string
		flag Flags
	}{
		{" SEND_", IsSend}, {"RDMA_WRITE", IsWrite}, {"READ_RESPONSE", IsReadResp}, {"_FIRST", IsFirst},
		{"_MIDDLE", IsMiddle}, {"_LAST", IsLast}, {"_IMMEDIATE", HasImm}, {"_INVALIDATE", HasInv},
		{"ATOMIC_ACK", HasAtomicAck}, {"UD ", HasDETH | HasPayload},
	} {
		if strings.Contains(n, c.word) && f&c.flag != c.flag {
			t.Errorf("%v lacks flag %#x", o, c.flag)
		}
		if one := c.flag&(c.flag-1) == 0; one && !strings.Contains(n, c.word) && f&c.flag != 0 {
			t.Errorf("%v has flag %#x", o, c.flag)
		}
	}
	if f&IsAtomic != 0 != (f&HasAtomic != 0) {
		t.Errorf("%v: atomic without header", o)
	}
	if f&HasAETH != 0 && f&IsResponse == 0 {
		t.Errorf("%v: a request with AETH", o)
	}
}

func TestOpcodeNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ got, want string }{
		{Service(6).String(), "service 6"}, {Operation(0x18).String(), "operation 0x18"},
		{Operation(0x7F).String(), "operation 0x7f"}, {Opcode(0x95).String(), "opcode 0x95"},
		{Opcode(0xA4).String(), "XRC SEND_ONLY"}, {Opcode(0x55).String(), "RD RESYNC"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
