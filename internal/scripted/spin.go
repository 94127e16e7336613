package scripted

import (
	"time"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

var (
	_ driver.SpinPoller = (*CQ)(nil)
	_ driver.ArmPoller  = (*CQ)(nil)
)

// PollFor is Poll: it looks once, as in virtual time nothing would end it.
// It is counted as "poll for", too.
func (q *CQ) PollFor(time.Duration) ([]driver.WC, error) {
	q.p.mu.Lock()
	q.p.calls["poll for"]++
	q.p.mu.Unlock()
	return q.Poll()
}

// ArmPoll is Arm and then Poll.
func (q *CQ) ArmPoll() (wc []driver.WC, armed, err error) {
	armed = q.Arm(false)
	wc, err = q.Poll()
	return wc, armed, err
}
