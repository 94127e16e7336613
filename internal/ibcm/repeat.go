package ibcm

import (
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// start sends c.message for the first time, and arranges for its repetition until the
// state changes.
func (a *Agent) start(now time.Duration, c *Conn) {
	switch c.state {
	case StateReqSent:
		c.tries = a.cfg.RequestTries
	case StateRepSent:
		c.tries = a.cfg.ReplyTries
	case StateDreqSent:
		c.tries = a.cfg.DisconnectTries
	}
	c.tries--
	c.interval = firstRetry
	a.send(c, c.message)
	a.rearm(now, c)
}

// rearm sets the timer of the next repetition.
func (a *Agent) rearm(now time.Duration, c *Conn) {
	spread := time.Duration(a.cfg.Rand()>>40) * (c.interval / 4) >> 24
	a.timers.set(c, now+c.interval+spread)
}

// expire does what the timer of c was for.
func (a *Agent) expire(now time.Duration, c *Conn) {
	switch c.state {
	case StateReqSent, StateRepSent, StateDreqSent:
		if c.tries > 0 {
			c.tries--
			a.stats.Repeated++
			a.send(c, c.message)
			c.grow()
			a.rearm(now, c)
			return
		}
		a.giveUp(now, c)
	case StateTimeWait:
		a.forget(c)
		a.event(Event{Type: EventTimeWaitExit, Conn: c})
	case StateRejected:
		a.forget(c)
	}
}

func (c *Conn) grow() {
	if c.state == StateReqSent {
		c.interval = min(c.interval*3/2, requestRetryCap)
		return
	}
	c.interval = min(c.interval*2, retryCap)
}

// giveUp is called when the last repetition has had no answer.
func (a *Agent) giveUp(now time.Duration, c *Conn) {
	if c.state == StateDreqSent {
		a.enterTimeWait(now, c)
		a.event(Event{Type: EventDisconnected, Conn: c, TimedOut: true})
		return
	}
	// Perhaps only its answers are lost: then the peer should not wait for us.
	a.send(c, a.timeoutReject(c))
	a.forget(c)
	a.event(Event{Type: EventUnreachable, Conn: c})
}

// extend is the wish of a peer that needs more time.
func (a *Agent) extend(now time.Duration, c *Conn, code uint8) {
	wait := ib.AckTimeoutDuration(min(code, maxServiceTimeout))
	if c.state == StateReqSent {
		// It lives: what was tried before does not count.
		c.tries = a.cfg.RequestTries - 1
		c.interval = firstRetry
	}
	if at := now + wait + c.interval; at > c.when {
		a.timers.set(c, at)
	}
}

// stale ends a connection whose peer has shown that it does not know it any more
// (IBTA Vol 1 §12.9.8.3.1).
func (a *Agent) stale(now time.Duration, c *Conn) {
	switch c.state {
	case StateEstablished, StateRepSent, StateRepRcvd:
		a.leaveQPN(c)
		a.disconnect(now, c)
	case StateReqRcvd:
		a.forget(c)
		a.event(Event{Type: EventRejected, Conn: c, Reason: ib.RejectStaleConn})
	default:
		a.leaveQPN(c)
	}
}
