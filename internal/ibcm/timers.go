package ibcm

import "time"

// timerHeap holds the connections that wait for a time, the earliest first.
type timerHeap []*Conn

func (h *timerHeap) set(c *Conn, at time.Duration) {
	c.when = at
	if c.pos == 0 {
		*h = append(*h, c)
		c.pos = len(*h)
		h.up(len(*h) - 1)
		return
	}
	if i := c.pos - 1; !h.up(i) {
		h.down(i)
	}
}

func (h *timerHeap) stop(c *Conn) {
	if c.pos == 0 {
		return
	}
	s := *h
	i, last := c.pos-1, len(s)-1
	if i != last {
		h.swap(i, last)
	}
	s[last] = nil
	*h = s[:last]
	c.pos = 0
	if i != last && !h.up(i) {
		h.down(i)
	}
}

func (h timerHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i+1, j+1
}

func (h timerHeap) up(i int) (moved bool) {
	for i > 0 {
		p := (i - 1) / 2
		if h[p].when <= h[i].when {
			break
		}
		h.swap(i, p)
		i, moved = p, true
	}
	return moved
}

func (h timerHeap) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1].when < h[c].when {
			c++
		}
		if h[i].when <= h[c].when {
			return
		}
		h.swap(i, c)
		i = c
	}
}

// connList is a list of connections that are over, the oldest first.
type connList struct {
	first, last *Conn
	n           int
}

func (l *connList) push(c *Conn) {
	c.list, c.prev, c.next = l, l.last, nil
	if l.last != nil {
		l.last.next = c
	} else {
		l.first = c
	}
	l.last = c
	l.n++
}

func (c *Conn) unlist() {
	l := c.list
	if l == nil {
		return
	}
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		l.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		l.last = c.prev
	}
	c.list, c.prev, c.next = nil, nil, nil
	l.n--
}

// bucket bounds how often something is done: a number at once, and a number a second.
type bucket struct {
	burst, rate int
	tokens      float64
	at          time.Duration
	started     bool
}

func (b *bucket) take(now time.Duration) bool {
	if !b.started {
		b.started, b.tokens = true, float64(b.burst)
	} else if now > b.at {
		b.tokens = min(float64(b.burst), b.tokens+(now-b.at).Seconds()*float64(b.rate))
	}
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
