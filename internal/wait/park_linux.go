package wait

import (
	"errors"
	"os"
	"time"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// sleep sleeps until check says true, or interrupt is called (found is false then).
func (p *poller) sleep(check func(uintptr) bool) (found bool, err error) {
	if p.dead {
		return false, driver.ErrDeviceGone
	}
	p.gone = false
	err = p.rc.Read(check)
	switch {
	case err == nil && !p.gone:
		return true, nil
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
		return false, nil
	}
	// Go's poller refuses a descriptor that reports an error condition only.
	// There will be no other edge, so the next sleep must know.
	p.dead = true
	return false, driver.ErrDeviceGone
}

// failed reports whether the descriptor will never be readable again.
func (p *poller) failed(fd uintptr) bool { return p.ready(fd) && p.gone }

// interrupt ends sleep, also one that is about to begin; resume allows the next.
func (p *poller) interrupt() { p.f.SetReadDeadline(time.Unix(1, 0)) }
func (p *poller) resume()    { p.f.SetReadDeadline(time.Time{}) }
