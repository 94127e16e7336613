package wait

import "time"

// Spinner decides how long to look for something before sleeping until it comes. It has
// no clock and no lock: its owner asks for the budget of the next spin, measures, and
// tells what became of the wait. There is one for each source, as what it learns is how
// soon that source answers. The zero Spinner never spins.
//
// A fixed policy always gives the same budget. An adaptive one keeps an account. A spin
// that finds what is waited for earns what the sleep would have taken longer; one in
// vain, or one that took long because the processor was given to others, costs its time.
// While the account is not empty it spins, for about as long as the answers took lately.
// When it is empty it sleeps, and goes on measuring: if what it sleeps for comes
// within reach of a spin, it tries again after a number of waits that doubles as long as
// trying does not pay. A source that answers late is tried rarely, and one that never
// answers costs one budget.
type Spinner struct {
	max      time.Duration
	adaptive bool

	account time.Duration // at most accountMost budgets
	phase   time.Duration // earned since it last began to spin
	pace    time.Duration // mean time of the answers within reach
	dev     time.Duration // mean deviation from that
	slept   time.Duration // mean time of waits without a spin that were near; 0: not known
	skip    int           // near waits without a spin until the next try
	far     int           // other waits without a spin until the next try
	penalty int           // value of skip after the next phase that does not pay
	rest    time.Duration // to be spent in waits without a spin until the next try
}

// DefaultSpin is the longest spin of an adaptive policy that names none: about twice what
// a sleep and a wake-up cost on a slow virtual machine.
const DefaultSpin = 100 * time.Microsecond

const (
	// assumedWake is what a wake-up costs as long as none was measured.
	assumedWake = 20 * time.Microsecond

	accountMost = 4    // spins in vain that a full account pays
	nearSpins   = 8    // a wait of up to so many budgets is near: spinning could end it
	leastSkip   = 4    // waits without a spin after the first phase that did not pay
	mostSkip    = 4096 // and at most
	restShare   = 20   // of the time, what a phase that did not pay may have taken
	restMost    = 2 * time.Second
	farSkip     = 1024 // waits for something far between two tries
	leastBudget = 2 * time.Microsecond
)

// Set chooses the policy and forgets what was learned: never (zero), a fixed bound, or
// adaptive with a bound (zero: DefaultSpin). A negative max is zero.
func (s *Spinner) Set(max time.Duration, adaptive bool) {
	if max <= 0 {
		max = 0
		if adaptive {
			max = DefaultSpin
		}
	}
	*s = Spinner{max: max, adaptive: adaptive}
	if adaptive {
		s.begin()
	}
}

// Budget gives the longest time of the next spin; zero: sleep at once.
func (s *Spinner) Budget() time.Duration {
	switch {
	case !s.adaptive:
		return s.max
	case s.account <= 0:
		return 0
	case s.pace == 0:
		return s.max
	}
	return min(max(s.pace+4*s.dev, leastBudget), s.max)
}

// Learns reports whether Hit and Miss matter, so that others need not measure.
func (s *Spinner) Learns() bool { return s.adaptive }

// Hit says that a spin found something after a time.
func (s *Spinner) Hit(took time.Duration) {
	if !s.adaptive {
		return
	}
	took = max(took, 0)
	gain := assumedWake
	if s.slept > 0 {
		gain = s.slept - took
	}
	if took > s.max {
		gain = s.max - took // the processor was with others
	} else {
		s.answer(took)
	}
	s.book(gain)
}

// Miss says that a spin of a length found nothing, or that none was made (zero), and that
// the whole wait then took so long; zero if that is not known, as the wait was given up.
func (s *Spinner) Miss(spun, total time.Duration) {
	if !s.adaptive {
		return
	}
	spun, total = max(spun, 0), max(total, 0)
	if spun == 0 {
		s.rest -= min(total, restMost)
	}
	near := total > 0 && total <= nearSpins*s.max
	if spun > 0 {
		if total > 0 && total <= s.max {
			s.answer(total) // a longer spin would have found it
		}
		s.book(-spun)
		return
	}
	if near {
		if s.slept == 0 {
			s.slept = total
		}
		s.slept += (total - s.slept) / 8
		s.skip--
	} else {
		s.far--
	}
	if s.account <= 0 && s.rest <= 0 && (s.skip <= 0 || s.far <= 0) {
		s.begin()
	}
}

// begin starts a phase of spinning, with the account of one who tries.
func (s *Spinner) begin() {
	s.account, s.phase = s.max/2, 0
	s.pace, s.dev = 0, 0
}

// book changes the account, and ends the phase if it is empty.
func (s *Spinner) book(gain time.Duration) {
	if s.account <= 0 {
		return // of a spin that another waiter had begun before
	}
	s.phase = min(s.phase+gain, time.Hour)
	if s.account = min(s.account+gain, accountMost*s.max); s.account > 0 {
		return
	}
	switch {
	case s.phase > 0:
		s.penalty = leastSkip
	default:
		s.penalty = min(max(2*s.penalty, leastSkip), mostSkip)
	}
	s.skip, s.far = s.penalty, farSkip
	// What is lost to others, who take the processor for a time slice and more, is to be
	// little against the time until it may be lost again.
	s.rest = restShare * min(max(-s.phase, 0), restMost/restShare)
}

// answer learns the time of an answer within reach.
func (s *Spinner) answer(took time.Duration) {
	if s.pace == 0 {
		s.pace, s.dev = max(took, 1), took/2
		return
	}
	d := took - s.pace
	s.pace = max(s.pace+d/8, 1)
	s.dev += (max(d, -d) - s.dev) / 8
}
