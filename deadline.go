package rdma

import "time"

// deadline is a time limit that can be moved. Who owns it has a lock, under which all
// methods are called, and a function for the timer that takes the lock, calls passed, and
// wakes whom it concerns.
//
// A limit that moves away leaves the timer where it is, as that looks at the limit when
// it fires; so a program that sets a deadline before each call costs next to nothing.
type deadline struct {
	at    time.Time // zero: there is none
	over  bool      // it has passed
	timer *time.Timer
	fires time.Time // when the timer does; zero: it does not run
}

// set moves the limit; zero takes it away. One that is in the past is over at once. fire
// is the owner's function, the same each time.
func (d *deadline) set(t time.Time, fire func()) {
	d.at, d.over = t, false
	if t.IsZero() {
		d.stop()
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.over = true
		d.stop()
		return
	}
	if d.fires.IsZero() || t.Before(d.fires) {
		d.start(left, fire)
	}
}

func (d *deadline) start(left time.Duration, fire func()) {
	d.fires = time.Now().Add(left)
	if d.timer == nil {
		d.timer = time.AfterFunc(left, fire)
		return
	}
	d.timer.Reset(left)
}

// stop ends the timer. One that has fired finds nothing to do.
func (d *deadline) stop() {
	if d.timer != nil && !d.fires.IsZero() {
		d.timer.Stop()
		d.fires = time.Time{}
	}
}

// passed is what the timer's function asks: whether the limit is over now. If not, the
// timer goes on.
func (d *deadline) passed(fire func()) bool {
	d.fires = time.Time{}
	if d.at.IsZero() || d.over {
		return d.over
	}
	if left := time.Until(d.at); left > 0 {
		d.start(left, fire)
		return false
	}
	d.over = true
	return true
}

// expired reports whether the limit is over, also if the timer is late.
func (d *deadline) expired() bool {
	if !d.over && !d.at.IsZero() && !time.Now().Before(d.at) {
		d.over = true
	}
	return d.over
}
