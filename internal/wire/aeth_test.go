package wire

import (
	"testing"
	"time"
)

func TestSyndrome(t *testing.T) {
	t.Parallel()
	for i := range 256 {
		s := Syndrome(i)
		want := AckReserved
		switch {
		case i <= 0x1F:
			want = AckOK
		case i >= 0x20 && i <= 0x3F:
			want = AckRNR
		case i >= 0x60 && i <= 0x64:
			want = AckNAK
		}
		if s.Kind() != want {
			t.Errorf("%#x is of kind %d, want %d", i, s.Kind(), want)
		}
		if s.String() == "" {
			t.Errorf("%#x has no name", i)
		}
		if n, limited := s.Credits(); limited != (i < 0x1F) || n < 0 {
			t.Errorf("%#x: credits %d, %v", i, n, limited)
		}
	}
	for s, want := range map[Syndrome]string{
		0x1F: "ACK", 0x05: "ACK 6", 0x20: "RNR NAK 655.36ms", 0x2C: "RNR NAK 640µs",
		NAKSequence: "NAK PSN sequence error", NAKInvalidRD: "NAK invalid RD request", 0x65: "syndrome 0x65", 0x80: "syndrome 0x80",
	} {
		if s.String() != want {
			t.Errorf("%#x: %q, want %q", uint8(s), s, want)
		}
	}
}

func TestCredits(t *testing.T) {
	t.Parallel()
	// IBTA Vol 1 table 46: 0 to 3, and two codes for each power of two from 4 on.
	for c := Syndrome(0); c < AckNoLimit; c++ {
		n, _ := c.Credits()
		want := int(c)
		if c >= 4 {
			want = 4 << (c/2 - 2)
			if c%2 == 1 {
				want += want / 2
			}
		}
		if n != want {
			t.Errorf("code %d is %d credits, want %d", c, n, want)
		}
	}
}

func TestRNRNAK(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]Syndrome{
		0: 0x21, 10 * time.Microsecond: 0x21, 640 * time.Microsecond: 0x2C, 641 * time.Microsecond: 0x2D,
		491520 * time.Microsecond: 0x3F, 491521 * time.Microsecond: 0x20, time.Hour: 0x20,
	} {
		if s := RNRNAK(d); s != want || s.Kind() != AckRNR {
			t.Errorf("%v: %#x, want %#x", d, uint8(s), uint8(want))
		}
	}
	if d := Syndrome(0x20).RNRTime(); d != 655360*time.Microsecond {
		t.Errorf("code 0 is %v", d)
	}
}
