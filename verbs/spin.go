package verbs

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/gosched"
	"github.com/verbena-rdma/verbena/internal/wait"
)

// Spin says how long who waits looks for what is waited for before it sleeps. To sleep
// and to be woken costs some microseconds, to look again nothing but a processor. There
// are three policies:
//
//	verbs.Sleep                   do not look, sleep: the zero value
//	verbs.SpinFor(d)              look for d, then sleep
//	verbs.Adaptive                look if that has paid lately, then sleep
//
// Who looks yields to other goroutines in between, at any number of processors, and
// after Max it sleeps; so waiting for something that does not come uses no processor time.
// Max bounds each single wait. It does not delay the end of a context or Close by more than
// a few microseconds.
type Spin struct {
	// Max is the longest time. Zero: do not look, or, with Adaptive, 100 µs, and more where
	// a wait that sleeps takes longer: a quarter more than the shortest of them, at most
	// 2 ms. A negative value is zero.
	Max time.Duration
	// Adaptive learns, for each source, whether looking pays: if answers come within Max
	// and earlier than a sleep would have given them, it goes on, for about as long
	// as they take; if it looks in vain, or the processors are wanted by others, it
	// stops, and tries again ever more rarely.
	Adaptive bool
}

// Sleep and Adaptive are the policies without a number; see Spin. They are not to be
// changed.
var (
	Sleep    = Spin{}
	Adaptive = Spin{Adaptive: true}
)

// SpinFor is the policy that looks for d, and then sleeps.
func SpinFor(d time.Duration) Spin { return Spin{Max: d} }

// SetSpin sets the policy of Wait, Next and Completions. The default is Sleep. What
// Adaptive has learned is forgotten. It may be called at any time and counts for the
// waits that begin afterwards.
func (cq *CQ) SetSpin(s Spin) {
	if cq == nil {
		return
	}
	sp := &cq.spin
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.s.Set(s.Max, s.Adaptive)
	sp.on.Store(s.Adaptive || s.Max > 0)
	sp.always.Store(!s.Adaptive && s.Max >= spinCall)
	sp.learns.Store(s.Adaptive)
	sp.single.Store(gosched.Processors() == 1)
}

// spinState is the policy of a queue and what it has learned.
type spinState struct {
	on, learns atomic.Bool
	always     atomic.Bool // each wait looks for spinCall at least
	single     atomic.Bool // there is one processor, or was when somebody looked
	pace       gosched.Pace
	mu         sync.Mutex
	s          wait.Spinner
}

func (s *spinState) budget() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.s.Budget()
}
