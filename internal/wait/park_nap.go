package wait

import (
	"time"

	"github.com/verbena-rdma/verbena/internal/gosched"
)

// nap is what a Parker needs for naps.
type nap struct {
	slice time.Duration // NapSlice, or what a test likes; zero: there are no naps
	in    bool          // somebody naps; under Parker.mu
	napFDs
	gosched.Naps // of who is parked
}

// most is the longest time of a nap.
func (n *nap) most() time.Duration { return gosched.NapSlices * n.slice }

// Nap allows naps, for a notifier whose descriptor says what try can take: it is readable exactly
// while try says true. It must be called before the first Park.
func (p *Parker) Nap() {
	if p.w == nil {
		p.nap.slice = gosched.NapSlice
	}
}
