package ib

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAckTimeout(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]uint8{
		-1: 0, 0: 0, 1: 1, 8192 * time.Nanosecond: 1, 8193 * time.Nanosecond: 2, 67108864: 14, 67108865: 15,
		time.Hour * 2: 31, time.Hour * 3: 31, math.MaxInt64: 31, 4096 << 31: 31, 4096<<30 + 1: 31, 4096 << 30: 30,
	} {
		if got := AckTimeout(d); got != want {
			t.Errorf("%v is code %d, want %d", d, got, want)
		}
	}
	for n := uint8(1); n < 32; n++ {
		d := AckTimeoutDuration(n)
		if d != 4096*time.Nanosecond<<n || AckTimeout(d) != n || n < 31 && AckTimeout(d+1) != n+1 {
			t.Errorf("code %d is %v, and back %d", n, d, AckTimeout(d))
		}
		if AckTimeoutDuration(n|0xE0) != d {
			t.Errorf("code %d: upper bits count", n)
		}
	}
	if d := AckTimeoutDuration(0); d != 0 {
		t.Errorf("code 0 is %v", d)
	}
}

func TestRNRTimer(t *testing.T) {
	t.Parallel()
	// The table of IBTA Vol 1 §9.7.5.2.8 in milliseconds.
	table := []float64{
		655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92, 2.56, 3.84, 5.12,
		7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
	}
	for i, ms := range table {
		n := uint8(i)
		want := time.Duration(math.Round(ms*100)) * 10 * time.Microsecond
		if d := RNRTimerDuration(n); d != want || RNRTimerDuration(n|0xE0) != want {
			t.Errorf("code %d is %v, want %v", n, d, want)
		}
		if got := RNRTimer(want); got != n {
			t.Errorf("%v is code %d, want %d", want, got, n)
		}
		if next := uint8(i+1) & 31; n != 0 {
			if got := RNRTimer(want + 1); got != next {
				t.Errorf("%v is code %d, want %d", want+1, got, next)
			}
		}
	}
	for d, want := range map[time.Duration]uint8{-1: 1, 0: 1, 1: 1, 655361 * time.Microsecond: 0, time.Hour: 0} {
		if got := RNRTimer(d); got != want {
			t.Errorf("%v is code %d, want %d", d, got, want)
		}
	}
}

func TestMTU(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]MTU{
		-1: 0, 0: 0, 255: 0, 256: MTU256, 511: MTU256, 512: MTU512, 1024: MTU1024, 1404: MTU1024, 2048: MTU2048,
		4095: MTU2048, 4096: MTU4096, 1 << 30: MTU4096,
	} {
		if got := MTUFromBytes(n); got != want {
			t.Errorf("%d bytes: %v, want %v", n, got, want)
		}
		if got := MTUFromLink(n + 96); got != want {
			t.Errorf("link of %d bytes: %v, want %v", n+96, got, want)
		}
	}
	if m := MTUFromLink(1500); m != MTU1024 {
		t.Error(m)
	}
	for m := range MTU(255) {
		if m.Valid() != (m >= 1 && m <= 5) || m.Valid() && MTUFromBytes(m.Bytes()) != m || !m.Valid() && m.Bytes() != 0 {
			t.Errorf("code %d: %d bytes", m, m.Bytes())
		}
	}
}

func TestRate(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]Rate{
		2500: 2, 10000: 3, 30000: 4, 5000: 5, 20000: 6, 40000: 7, 60000: 8, 80000: 9, 120000: 10, 14062: 11, 56250: 12,
		112500: 13, 168750: 14, 25781: 15, 103125: 16, 206250: 17, 309375: 18, 28125: 19, 53125: 20, 425000: 21,
		637500: 22, 850000: 23, 1275000: 24, 0: RateMax, -1: RateMax, 100000: RateMax,
	} {
		if got := RateFromMbps(n); got != want || want != RateMax && got.Mbps() != n {
			t.Errorf("%d Mbit/s is code %d with %d Mbit/s, want %d", n, got, got.Mbps(), want)
		}
	}
	if RateMax.String() != "MAX" || Rate(3).String() != "10000 Mbit/s" || Rate(200).Mbps() != 0 {
		t.Errorf("%v %v %d", RateMax, Rate(3), Rate(200).Mbps())
	}
}

func TestUDPSourcePort(t *testing.T) {
	t.Parallel()
	for flow, want := range map[uint32]uint16{
		0: 0xC000, 1: 0xC001, 0x3FFF: 0xFFFF, 0x4000: 0xC001, 0xFC000: 0xC03F, 0xFFFFF: 0xFFC0, 0x8EA4D: 0xC000 | 0x2A4D ^ 0x23,
		0x100000: 0xC000, // only 20 bits count
	} {
		if got := UDPSourcePort(flow); got != want {
			t.Errorf("flow %#x: port %#x, want %#x", flow, got, want)
		}
	}
	for _, c := range [][2]QPN{{0x11, 0x12}, {0xFFFFFF, 0xFFFFFF}, {2, 0xABCDEF}, {0, 5}} {
		v := uint64(c[0]) * uint64(c[1])
		v ^= v >> 20
		v ^= v >> 40
		if got := FlowLabel(c[0], c[1]); got != uint32(v&0xFFFFF) || got != FlowLabel(c[1], c[0]) {
			t.Errorf("%v: %#x", c, got)
		}
		if got := UDPSourcePortQP(0, c[0], c[1]); got != UDPSourcePort(uint32(v&0xFFFFF)) || got < 0xC000 {
			t.Errorf("%v: port %#x", c, got)
		}
		if got := UDPSourcePortQP(0x100001, c[0], c[1]); got != 0xC001 {
			t.Errorf("%v: port %#x in spite of a flow label", c, got)
		}
	}
	if got := FlowLabel(0x11, 0x12); got != 0x132 {
		t.Errorf("%#x", got)
	}
}

func TestStatusError(t *testing.T) {
	t.Parallel()
	if err := StatusSuccess.Err(); err != nil {
		t.Errorf("success is %v", err)
	}
	for i := 1; i < 256; i++ {
		s := Status(i)
		err := s.Err()
		if err != StatusError(s) || !errors.Is(err, StatusError(s)) || errors.Is(err, StatusError(s^1)) {
			t.Errorf("%v: not itself", s)
		}
		var se StatusError
		if !errors.As(err, &se) || se.Status() != s {
			t.Errorf("%v: errors.As gives %v", s, se)
		}
		if !strings.Contains(err.Error(), s.String()) || !strings.Contains(err.Error(), se.Remedy()) {
			t.Errorf("%v: %q", s, err)
		}
	}
	for s, err := range map[Status]error{
		StatusWRFlush: ErrWRFlush, StatusRetryExc: ErrRetryExc, StatusRNRRetryExc: ErrRNRRetryExc, StatusRemAccess: ErrRemAccess,
	} {
		if s.Err() != err || StatusError(s).Remedy() == "" {
			t.Errorf("%v gives %v", s, s.Err())
		}
	}
	if got, want := ErrRNRRetryExc.Error(), "receiver-not-ready retries exceeded (RNR_RETRY_EXC_ERR): "+
		"the peer posted no receive; post receives before connecting, or let RNR retries be 7"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := StatusError(99).Error(); got != "work request failed: Status(99)" {
		t.Error(got)
	}
}

func TestRejectReason(t *testing.T) {
	t.Parallel()
	for i := range 1 << 16 {
		r := RejectReason(i)
		if got := errors.Is(r, syscall.ECONNREFUSED); got != (r == RejectInvalidServiceID || r == RejectConsumer) {
			t.Errorf("%v is ECONNREFUSED: %v", r, got)
		}
		if errors.Is(r, syscall.ETIMEDOUT) || !errors.Is(r, r) {
			t.Errorf("%v: errors.Is is wrong", r)
		}
		if msg := r.Error(); !strings.HasPrefix(msg, "connection rejected: ") || !strings.Contains(msg, r.String()) {
			t.Errorf("%d: %q", i, msg)
		}
	}
	if got, want := RejectInvalidServiceID.Error(), "connection rejected: nobody listens on that port (INVALID_SERVICE_ID)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRemote(t *testing.T) {
	t.Parallel()
	r := Remote{0x7F0000001000, 0xABCD, 4096}
	b, err := r.AppendBinary([]byte("x"))
	want := append([]byte("x"), 0, 0, 0x7F, 0, 0, 0, 0x10, 0, 0, 0, 0xAB, 0xCD, 0, 0, 0x10, 0)
	if err != nil || !bytes.Equal(b, want) {
		t.Fatalf("%x, %v, want %x", b, err, want)
	}
	got, rest, err := ConsumeRemote(append(b[1:], 1, 2))
	if err != nil || got != r || !bytes.Equal(rest, []byte{1, 2}) {
		t.Errorf("%v, %x, %v", got, rest, err)
	}
	for n := range RemoteLen {
		got, rest, err := ConsumeRemote(b[1 : 1+n])
		if !errors.Is(err, io.ErrUnexpectedEOF) || got != (Remote{}) || len(rest) != n {
			t.Errorf("cut to %d bytes: %v, %x, %v", n, got, rest, err)
		}
	}
	m, err := r.MarshalBinary()
	var u Remote
	if err != nil || u.UnmarshalBinary(m) != nil || u != r {
		t.Errorf("%x, %v, %v", m, err, u)
	}
	for _, bad := range [][]byte{nil, m[:15], append(m, 0)} {
		if err := u.UnmarshalBinary(bad); err == nil {
			t.Errorf("%d bytes are taken", len(bad))
		}
	}
	if s := r.String(); s != "0x7f0000001000+4096 rkey 0xabcd" {
		t.Error(s)
	}
}

func TestRemoteSlice(t *testing.T) {
	t.Parallel()
	r := Remote{1000, 7, 100}
	for _, c := range []struct {
		off, n int
		ok     bool
	}{
		{0, 100, true}, {0, 0, true}, {100, 0, true}, {40, 60, true}, {40, 61, false}, {101, 0, false}, {-1, 1, false},
		{0, -1, false}, {1, math.MaxInt, false}, {math.MaxInt, math.MaxInt, false}, {math.MinInt, 0, false},
	} {
		got, ok := func() (s Remote, ok bool) {
			defer func() {
				if e := recover(); e != nil && !strings.Contains(e.(string), "100 bytes") {
					t.Errorf("panic %v", e)
				}
			}()
			return r.Slice(c.off, c.n), true
		}()
		if ok != c.ok || ok && got != (Remote{1000 + uint64(c.off), 7, uint32(c.n)}) {
			t.Errorf("Slice(%d, %d) is %v, %v", c.off, c.n, got, ok)
		}
	}
	full, half := Remote{0, 1, math.MaxUint32}, math.MaxInt32
	if s := full.Slice(half, half); s != (Remote{math.MaxInt32, 1, math.MaxInt32}) {
		t.Error("a large region cannot be sliced")
	}
}

func TestAllocs(t *testing.T) {
	buf := make([]byte, 0, 64)
	var sink error
	if n := testing.AllocsPerRun(100, func() {
		for s := range Status(30) {
			sink = s.Err()
		}
		sink = RejectConsumer
		if !errors.Is(sink, syscall.ECONNREFUSED) {
			t.Fatal("not refused")
		}
		b, _ := Remote{1, 2, 3}.AppendBinary(buf)
		if _, _, err := ConsumeRemote(b); err != nil {
			t.Fatal(err)
		}
		if AckTimeout(time.Second) != 18 || RNRTimer(time.Second) != 0 {
			t.Fatal("wrong codes")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
