package main

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// stats are the times of one kind of exchange. It is used by one goroutine.
type stats struct {
	h        *hdrhistogram.Histogram
	sum      time.Duration
	min, max time.Duration
}

// Times up to a minute in steps of at most 0.1 %; longer ones count as a minute in the
// quantiles. It takes about 200 KiB.
const (
	longestTime = time.Minute
	digits      = 3
)

func newStats() *stats {
	return &stats{h: hdrhistogram.New(1, int64(longestTime), digits)}
}

func (s *stats) add(d time.Duration) {
	d = max(d, 1)
	if s.h.TotalCount() == 0 || d < s.min {
		s.min = d
	}
	s.max = max(s.max, d)
	s.sum += d
	// Within the bounds it cannot fail.
	if err := s.h.RecordValue(int64(min(d, longestTime))); err != nil {
		panic(err)
	}
}

func (s *stats) count() int64 { return s.h.TotalCount() }

func (s *stats) mean() time.Duration {
	if s.count() == 0 {
		return 0
	}
	return s.sum / time.Duration(s.count())
}

// quantile gives the time that percent of the exchanges did not exceed.
func (s *stats) quantile(percent float64) time.Duration {
	// A bucket is named by its upper end, which may lie beyond the largest time.
	return min(time.Duration(s.h.ValueAtQuantile(percent)), s.max)
}

// row is a line of the summary's table.
func (s *stats) row(name string) string {
	return fmt.Sprintf("%-6s %9s %9s %9s %9s %9s %9s", name,
		short(s.min), short(s.mean()), short(s.quantile(50)), short(s.quantile(99)), short(s.quantile(99.9)), short(s.max))
}

var statsHead = fmt.Sprintf("%-6s %9s %9s %9s %9s %9s %9s", "", "min", "avg", "p50", "p99", "p99.9", "max")

// short writes a time with four digits or so.
func short(d time.Duration) string {
	switch {
	case d < time.Microsecond:
		return fmt.Sprintf("%d ns", d.Nanoseconds())
	case d < time.Millisecond:
		return fmt.Sprintf("%.1f µs", float64(d)/float64(time.Microsecond))
	case d < time.Second:
		return fmt.Sprintf("%.3f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.3f s", d.Seconds())
}
