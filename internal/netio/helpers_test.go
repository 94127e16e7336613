package netio

// countersOf gives the counters of a connection; all are 0 if it has none.
func countersOf(c Conn) Counters {
	if c, ok := c.(interface{ counters() Counters }); ok {
		return c.counters()
	}
	return Counters{}
}

// room makes messages to read into.
func room(n, size int) []Message {
	ms := make([]Message, n)
	for i := range ms {
		ms[i].Buf = make([]byte, 0, size)
	}
	return ms
}

// pattern makes n bytes that differ by place and by seed.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*31 ^ seed
	}
	return b
}
