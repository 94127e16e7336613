package stream

import "time"

// keepAlive finds a peer that is gone. Verbena asks it (PING, PONG), so that its software
// must answer; Compatible sends a WRITE of no bytes, which its device answers.
type keepAlive struct {
	KeepAlive
	last time.Duration // the last sign of life
	at   time.Duration // when the probe was due
	ask  bool          // a probe is to be sent
	open bool          // a probe waits for its answer, or to be sent
	id   uint64        // its request, in Compatible
}

// longest keeps sums of times from running over: a program may say "never" with the
// greatest Duration.
const longest = 1 << 60 // 36 years

func (k *keepAlive) set(c KeepAlive, now time.Duration) {
	k.KeepAlive = KeepAlive{Idle: min(c.Idle, longest), Interval: c.Interval, Count: max(c.Count, 1)}
	if k.Interval > longest/time.Duration(k.Count) {
		k.Interval, k.Count = longest, 1
	}
	k.heard(now)
}

// heard notes a sign of life.
func (k *keepAlive) heard(now time.Duration) {
	k.last = now
	k.ask, k.open, k.id = false, false, 0
}

// patience is how long an answer may take.
func (k *keepAlive) patience() time.Duration { return k.Interval * time.Duration(k.Count) }

func (k *keepAlive) deadline() (time.Duration, bool) {
	switch {
	case k.Idle <= 0:
		return 0, false
	case k.open:
		return k.at + k.patience(), true
	}
	return k.last + k.Idle, true
}

// due lets time pass, and reports whether the peer is given up.
func (k *keepAlive) due(now time.Duration) bool {
	at, ok := k.deadline()
	if !ok || now < at {
		return false
	}
	if k.open {
		return true
	}
	k.ask, k.open, k.at = true, true, now
	return false
}

// GivesUp reports whether Advance would find the peer silent for too long. The owner looks
// for completions first that it has not passed yet.
func (e *Engine) GivesUp(now time.Duration) bool {
	at, ok := e.alive.deadline()
	return ok && e.alive.open && now >= at && !e.end.over && e.asks()
}

// SetKeepAlive changes Config.KeepAlive; the time of idleness starts anew.
func (e *Engine) SetKeepAlive(now time.Duration, k KeepAlive) {
	e.now = now
	e.alive.set(k, now)
}
