package netio

import "sync/atomic"

type counters struct {
	readCalls, writeCalls, received, sent atomic.Uint64
	receivedTrains, sentTrains, truncated atomic.Uint64
	overflow, waits, fallbacks            atomic.Uint64
}

func (c *counters) load() Counters {
	return Counters{
		ReadCalls:      c.readCalls.Load(),
		WriteCalls:     c.writeCalls.Load(),
		Received:       c.received.Load(),
		Sent:           c.sent.Load(),
		ReceivedTrains: c.receivedTrains.Load(),
		SentTrains:     c.sentTrains.Load(),
		Truncated:      c.truncated.Load(),
		Overflow:       c.overflow.Load(),
		Waits:          c.waits.Load(),
		Fallbacks:      c.fallbacks.Load(),
	}
}
