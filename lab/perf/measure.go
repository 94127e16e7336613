package main

import (
	"slices"
	"time"
)

// pingPong exchanges messages one at a time and gives the median of half a round trip, as
// perftest's t_typical.
func (e *end) pingPong(first bool) (time.Duration, error) {
	times := make([]time.Duration, 0, e.o.n)
	var last time.Time
	for i := range e.o.n {
		if first {
			now := time.Now()
			if i > 0 {
				times = append(times, now.Sub(last))
			}
			last = now
			if err := e.post(); err != nil {
				return 0, err
			}
		}
		if err := e.received(); err != nil {
			return 0, err
		}
		if !first {
			if err := e.post(); err != nil {
				return 0, err
			}
		}
		if !first && i == e.o.n-1 {
			break // the peer has its last message, and may be gone
		}
		if _, err := e.poll(e.scq); err != nil {
			return 0, err
		}
	}
	if len(times) == 0 {
		return 0, nil
	}
	slices.Sort(times)
	return times[len(times)/2] / 2, nil
}

// received waits for one message, and posts its receive again.
func (e *end) received() error {
	n, err := e.poll(e.rcq)
	for range n {
		if err == nil {
			err = e.recv()
		}
	}
	return err
}

// sink takes messages.
func (e *end) sink() error {
	for got := 0; got < e.o.n; {
		n, err := e.poll(e.rcq)
		if err != nil {
			return err
		}
		for range n {
			if got++; got+recvDepth <= e.o.n {
				if err := e.recv(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// stream keeps the queue full until all is done, and gives MiB/s.
func (e *end) stream() (float64, error) {
	start := time.Now()
	for e.done < e.o.n {
		for e.sent < e.o.n && e.sent-e.done < e.o.depth {
			if err := e.post(); err != nil {
				return 0, err
			}
		}
		n, err := e.poll(e.scq)
		if err != nil {
			return 0, err
		}
		for i := range n {
			e.done = max(e.done, int(e.wc[i].ID)+1) // those before are complete as well
		}
	}
	return float64(e.o.n) * float64(e.o.size) / (1 << 20) / time.Since(start).Seconds(), nil
}
