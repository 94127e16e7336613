package scripted

import (
	"time"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

var _ driver.SpinPoller = (*CQ)(nil)

// PollFor is Poll: it looks once, as in virtual time nothing would end it.
func (q *CQ) PollFor(time.Duration) ([]driver.WC, error) { return q.Poll() }
