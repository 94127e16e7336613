package ibcm

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// field is a row of the tables of IBTA Vol 1 §12.6, §12.8 and §12.11, written down
// apart from the code: the first byte behind the MAD header, the highest bit in it (7
// to 0), and the number of bits.
type field struct {
	name           string
	off, bit, size int
}

func pathFields(prefix string, off int) []field {
	return []field{
		{prefix + ".LocalLID", off, 7, 16}, {prefix + ".RemoteLID", off + 2, 7, 16},
		{prefix + ".LocalGID", off + 4, 7, 128}, {prefix + ".RemoteGID", off + 20, 7, 128},
		{prefix + ".FlowLabel", off + 36, 7, 20}, {prefix + ".Rate", off + 39, 5, 6},
		{prefix + ".TrafficClass", off + 40, 7, 8}, {prefix + ".HopLimit", off + 41, 7, 8},
		{prefix + ".SL", off + 42, 7, 4}, {prefix + ".SubnetLocal", off + 42, 3, 1},
		{prefix + ".AckTimeout", off + 43, 7, 5},
	}
}

var layouts = map[Attr][]field{
	AttrREQ: append(append([]field{
		{"LocalCommID", 0, 7, 32}, {"VendorID", 5, 7, 24}, {"ServiceID", 8, 7, 64}, {"LocalGUID", 16, 7, 64},
		{"LocalQKey", 28, 7, 32}, {"LocalQPN", 32, 7, 24}, {"ResponderResources", 35, 7, 8}, {"LocalEECN", 36, 7, 24},
		{"InitiatorDepth", 39, 7, 8}, {"RemoteEECN", 40, 7, 24}, {"RemoteTimeout", 43, 7, 5}, {"Transport", 43, 2, 2},
		{"FlowControl", 43, 0, 1}, {"StartingPSN", 44, 7, 24}, {"LocalTimeout", 47, 7, 5}, {"RetryCount", 47, 2, 3},
		{"PKey", 48, 7, 16}, {"MTU", 50, 7, 4}, {"RDC", 50, 3, 1}, {"RNRRetryCount", 50, 2, 3},
		{"MaxCMRetries", 51, 7, 4}, {"SRQ", 51, 3, 1}, {"ExtTransport", 51, 2, 3}, {"AlternateSAP", 139, 2, 1},
		{"Private", 140, 7, 92 * 8},
	}, pathFields("Primary", 52)...), pathFields("Alternate", 96)...),
	AttrMRA: {
		{"LocalCommID", 0, 7, 32}, {"RemoteCommID", 4, 7, 32}, {"Message", 8, 7, 2}, {"ServiceTimeout", 9, 7, 5},
		{"Private", 10, 7, 222 * 8},
	},
	AttrREJ: {
		{"LocalCommID", 0, 7, 32}, {"RemoteCommID", 4, 7, 32}, {"Message", 8, 7, 2}, {"ARILen", 9, 7, 7},
		{"Reason", 10, 7, 16}, {"ARI", 12, 7, 72 * 8}, {"Private", 84, 7, 148 * 8},
	},
	AttrREP: {
		{"LocalCommID", 0, 7, 32}, {"RemoteCommID", 4, 7, 32}, {"LocalQKey", 8, 7, 32}, {"LocalQPN", 12, 7, 24},
		{"LocalEECN", 16, 7, 24}, {"StartingPSN", 20, 7, 24}, {"ResponderResources", 24, 7, 8},
		{"InitiatorDepth", 25, 7, 8}, {"AckDelay", 26, 7, 5}, {"Failover", 26, 2, 2}, {"FlowControl", 26, 0, 1},
		{"RNRRetryCount", 27, 7, 3}, {"SRQ", 27, 4, 1}, {"LocalGUID", 28, 7, 64}, {"Private", 36, 7, 196 * 8},
	},
	AttrRTU: {{"LocalCommID", 0, 7, 32}, {"RemoteCommID", 4, 7, 32}, {"Private", 8, 7, 224 * 8}},
	AttrDREQ: {
		{"LocalCommID", 0, 7, 32}, {"RemoteCommID", 4, 7, 32}, {"RemoteQPN", 8, 7, 24}, {"Private", 12, 7, 220 * 8},
	},
	AttrDREP: {{"LocalCommID", 0, 7, 32}, {"RemoteCommID", 4, 7, 32}, {"Private", 8, 7, 224 * 8}},
	AttrSIDRREQ: {
		{"RequestID", 0, 7, 32}, {"PKey", 4, 7, 16}, {"ServiceID", 8, 7, 64}, {"Private", 16, 7, 216 * 8},
	},
	AttrSIDRREP: {
		{"RequestID", 0, 7, 32}, {"Status", 4, 7, 8}, {"InfoLen", 5, 7, 8}, {"QPN", 8, 7, 24}, {"ServiceID", 12, 7, 64},
		{"QKey", 20, 7, 32}, {"Info", 24, 7, 72 * 8}, {"Private", 96, 7, 136 * 8},
	},
	AttrLAP: {
		{"LocalCommID", 0, 7, 32}, {"RemoteCommID", 4, 7, 32}, {"RemoteQPN", 12, 7, 24}, {"RemoteTimeout", 15, 7, 5},
		{"Alternate.LocalLID", 20, 7, 16}, {"Alternate.RemoteLID", 22, 7, 16}, {"Alternate.LocalGID", 24, 7, 128},
		{"Alternate.RemoteGID", 40, 7, 128}, {"Alternate.FlowLabel", 56, 7, 20}, {"Alternate.TrafficClass", 59, 7, 8},
		{"Alternate.HopLimit", 60, 7, 8}, {"Alternate.Rate", 61, 5, 6}, {"Alternate.SL", 62, 7, 4},
		{"Alternate.SubnetLocal", 62, 3, 1}, {"Alternate.AckTimeout", 63, 7, 5}, {"Private", 64, 7, 168 * 8},
	},
	AttrAPR: {
		{"LocalCommID", 0, 7, 32}, {"RemoteCommID", 4, 7, 32}, {"InfoLen", 8, 7, 8}, {"Status", 9, 7, 8},
		{"Info", 12, 7, 72 * 8}, {"Private", 84, 7, 148 * 8},
	},
}

// spread are the fields that are not in one piece: the vendor's id.
var spread = map[Attr][]int{
	AttrREP:     {15, 19, 23},
	AttrSIDRREP: {6, 7, 11},
}

// Every field, filled with ones, sets exactly its bits; every field of every struct is
// in the table.
func TestMessageLayout(t *testing.T) {
	t.Parallel()
	for a := AttrREQ; a <= AttrAPR; a++ {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			covered := map[string]bool{}
			for _, f := range layouts[a] {
				covered[f.name] = true
				m := newMessage(a)
				v := reflect.ValueOf(m).Elem()
				for part := range strings.SplitSeq(f.name, ".") {
					v = v.FieldByName(part)
				}
				fill(t, v)
				var b, want [MADLen]byte
				m.Encode(&b)
				newMessage(a).Encode(&want)
				at := (headerLen+f.off)*8 + 7 - f.bit
				for i := range f.size {
					want[(at+i)/8] |= 0x80 >> ((at + i) % 8)
				}
				if b != want {
					t.Errorf("%s: %x, want %x", f.name, b[headerLen:], want[headerLen:])
				}
			}
			if at := spread[a]; at != nil {
				covered["VendorID"] = true
				m := newMessage(a)
				reflect.ValueOf(m).Elem().FieldByName("VendorID").SetUint(0xA1B2C3)
				var b, want [MADLen]byte
				m.Encode(&b)
				newMessage(a).Encode(&want)
				for i, off := range at {
					want[headerLen+off] = [...]byte{0xA1, 0xB2, 0xC3}[i]
				}
				if b != want {
					t.Errorf("VendorID: %x, want %x", b[headerLen:], want[headerLen:])
				}
			}
			for _, name := range fieldNames(reflect.TypeOf(newMessage(a)).Elem(), "") {
				if !covered[name] {
					t.Errorf("%s is in no table", name)
				}
			}
		})
	}
}

func fill(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1<<v.Type().Bits() - 1)
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i))
		}
	default:
		t.Fatalf("cannot fill %v", v)
	}
}

func fieldNames(t reflect.Type, prefix string) (names []string) {
	for f := range t.Fields() {
		switch {
		case f.Name == "Header":
		case f.Type.Kind() == reflect.Struct:
			names = append(names, fieldNames(f.Type, prefix+f.Name+".")...)
		default:
			names = append(names, prefix+f.Name)
		}
	}
	return names
}

// Every bit of a message that is set alone comes back alone, or is reserved and does
// not come back; the reserved bits are those of the standard.
func TestMessageBits(t *testing.T) {
	t.Parallel()
	reserved := map[Attr]string{
		AttrREQ: "4/8 24/32 90.3/4 91.7/2 94.2/3 95.2/3 134.3/4 135.7/2 138.2/3 139.1/2",
		AttrMRA: "8.5/6 9.2/3",
		AttrREJ: "8.5/6 9.0/1",
		AttrREP: "27.3/4",
		AttrRTU: "", AttrDREP: "",
		AttrDREQ:    "11/8",
		AttrSIDRREQ: "6/16",
		AttrSIDRREP: "",
		AttrLAP:     "8/32 15.2/3 16/32 58.3/4 61.7/2 62.2/3 63.2/3",
		AttrAPR:     "10/16",
	}
	for a := AttrREQ; a <= AttrAPR; a++ {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			want := map[int]bool{}
			for r := range strings.FieldsSeq(reserved[a]) {
				var off, size int
				bit := 7
				if _, err := fmt.Sscanf(r, "%d.%d/%d", &off, &bit, &size); err != nil {
					bit = 7
					if _, err := fmt.Sscanf(r, "%d/%d", &off, &size); err != nil {
						t.Fatal(r, err)
					}
				}
				for i := range size {
					want[off*8+7-bit+i] = true
				}
			}
			for i := range dataLen * 8 {
				var b, again [MADLen]byte
				newMessage(a).Encode(&b)
				empty := b
				b[headerLen+i/8] |= 0x80 >> (i % 8)
				m, err := Parse(b[:])
				if err == ErrInfoLen && i%8 < 2 {
					continue // 64 and 128 bytes of additional information
				}
				if err != nil {
					t.Fatal(err)
				}
				m.Encode(&again)
				switch {
				case again == b && want[i]:
					t.Errorf("byte %d, bit %d comes back, but is reserved", i/8, 7-i%8)
				case again == empty && !want[i]:
					t.Errorf("byte %d, bit %d is lost", i/8, 7-i%8)
				case again != b && again != empty:
					t.Errorf("byte %d, bit %d comes back as %x", i/8, 7-i%8, again[headerLen:])
				}
			}
		})
	}
}
