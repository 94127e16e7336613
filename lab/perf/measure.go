package main

import (
	"slices"
	"time"
)

// pingPong exchanges messages one at a time and gives the median of half a round trip, as
// perftest's t_typical. What can wait is done while the message is on its way: the time is taken
// then, and receives are posted again, in batches, and only as many as there will be messages. Who
// polls takes the completion of the send meanwhile; who sleeps takes it with the answer, when it is
// there, and so sleeps once for each message.
func (e *end) pingPong(first bool) (time.Duration, error) {
	times := make([]time.Duration, 0, e.o.n)
	start, last := time.Now(), time.Duration(0)
	for i := range e.o.n {
		if first {
			if err := e.say(i); err != nil {
				return 0, err
			}
			now := time.Since(start)
			if i > 0 {
				times = append(times, now-last)
			}
			last = now
		}
		n, err := e.poll(e.rcq)
		if err != nil {
			return 0, err
		}
		e.taken += n
		if !first {
			if err := e.say(i); err != nil {
				return 0, err
			}
		}
	}
	if len(times) == 0 {
		return 0, nil
	}
	slices.Sort(times)
	return times[len(times)/2] / 2, nil
}

// say sends the i-th message, and does what there is to do until it is answered.
func (e *end) say(i int) error {
	if e.o.wait != polling && i > 0 {
		if _, err := e.poll(e.scq); err != nil { // of the message before
			return err
		}
	}
	if err := e.post(); err != nil {
		return err
	}
	if err := e.refill(); err != nil {
		return err
	}
	if e.o.wait != polling {
		return nil
	}
	_, err := e.poll(e.scq)
	return err
}

// refill posts the receives again whose messages have been taken, when they make a batch and as
// long as more messages will come than there are receives.
func (e *end) refill() error {
	n := min(e.taken, e.o.n-e.posted)
	if n < len(e.recvs) && e.posted+n < e.o.n || n <= 0 {
		return nil
	}
	for n > 0 {
		k, err := e.qp.PostRecvList(e.recvs[:min(n, len(e.recvs))])
		if err != nil {
			return err
		}
		n, e.taken, e.posted = n-k, e.taken-k, e.posted+k
	}
	return nil
}

// sink takes messages.
func (e *end) sink() error {
	for got := 0; got < e.o.n; {
		n, err := e.poll(e.rcq)
		if got += n; got == e.o.n {
			return nil // the peer may be gone already, and the receives that are left with it
		}
		if err != nil {
			return err
		}
		e.taken += n
		if err := e.refill(); err != nil {
			return err
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
