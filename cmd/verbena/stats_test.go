package main

import (
	"strings"
	"testing"
	"time"
)

func TestStats(t *testing.T) {
	t.Parallel()
	s := newStats()
	if s.mean() != 0 || s.quantile(50) != 0 {
		t.Error("times without exchanges")
	}
	for i := range 1000 {
		s.add(time.Duration(1000-i) * time.Microsecond)
	}
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if d := got - want; d < -want/500 || d > want/500 {
			t.Errorf("%s is %v, not about %v", what, got, want)
		}
	}
	if s.count() != 1000 || s.min != time.Microsecond || s.max != time.Millisecond {
		t.Error(s.count(), s.min, s.max)
	}
	near("avg", s.mean(), 500500*time.Nanosecond)
	near("p50", s.quantile(50), 500*time.Microsecond)
	near("p99", s.quantile(99), 990*time.Microsecond)
	near("p99.9", s.quantile(99.9), 999*time.Microsecond)
	if len(strings.Fields(strings.ReplaceAll(s.row("RDMA"), " µs", "µs"))) != 8 { // 1.000 ms is two words
		t.Error(s.row("RDMA"))
	}
	// Times beyond the histogram are bounded in the quantiles, exact elsewhere.
	s = newStats()
	s.add(time.Hour)
	s.add(0)
	if s.max != time.Hour || s.min != 1 || s.quantile(100) > longestTime+longestTime/500 {
		t.Error(s.max, s.min, s.quantile(100))
	}
	if s.quantile(100) > s.max {
		t.Error("a quantile above the maximum")
	}
}

func TestShort(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0:                        "0 ns",
		999:                      "999 ns",
		31250:                    "31.2 µs",
		1234567:                  "1.235 ms",
		2 * time.Second:          "2.000 s",
		90*time.Second + 5000000: "90.005 s",
	} {
		if got := short(d); got != want {
			t.Errorf("%d is %q, not %q", d, got, want)
		}
	}
}
