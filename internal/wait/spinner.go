package wait

import "time"

// Spinner decides how long to look for something before sleeping until it comes. It has
// no clock and no lock: its owner asks for the budget of the next spin, measures, and
// tells what became of the wait. There is one for each source, as what it learns is how
// soon that source answers. The zero Spinner never spins.
//
// A fixed policy always gives the same budget. An adaptive one compares. While it sleeps it
// learns how long a wait takes asleep. Then it tries: a spin that finds something earns what
// it was shorter than that, or costs what it was longer, as the processor was with others;
// one in vain costs its time. It goes on while the account of all that is not empty. When it
// is, the next try comes after a number of waits that doubles as long as trying does not
// pay, and not before the loss is a small share of the time. But a share of what has been earned
// is for tries that do not pay: after a mishap, in which one end stops and the other goes on, the
// two soon spin together again.
//
// Looking pays most if both ends look, and may be a loss if one does, as the other may then be
// woken later. Who looks alone learns the wrong thing. So tries begin at multiples of a
// power of two of the number of waits, and last some waits: two ends that pass a message to
// and fro have the same number, and try together.
//
// How long a spin may be is given, or follows from what a wait takes asleep: where to be woken is
// dear, a spin must last until the other end has been, or two ends never meet. So much of a spin as
// is beyond DefaultSpin counts against what it saves, and a try of such spins that does not pay is
// followed by a longer rest.
//
// Waits for something far say nothing about the near ones. After two of them it sleeps until
// something near comes; so a source that is silent costs two spins at most.
type Spinner struct {
	max      time.Duration
	adaptive bool
	free     bool // max follows what is learned

	waits   uint32
	on      bool          // it spins, while something near is expected
	far     int           // waits for something far, one after the other
	account time.Duration // at most accountMost budgets
	phase   time.Duration // earned since on
	credit  time.Duration // what phases that have paid left for tries that do not
	pace    time.Duration // mean time of the answers within reach; 0: not known
	dev     time.Duration // mean deviation from that
	slept   time.Duration // mean time of waits without a spin for what is about within reach; 0: not known
	asked   time.Duration // how many waits that is the mean of, at most 8
	least   time.Duration // shortest wait asleep of the samples that are being taken; 0: none
	period  uint32        // a try begins at multiples of it
	rest    time.Duration // to be spent in waits without a spin until the next try
}

// DefaultSpin and MostSpin are between what the longest spin of an adaptive policy lies that
// names none. DefaultSpin is about twice what a sleep and a wake-up cost on a slow virtual
// machine.
const (
	DefaultSpin = 100 * time.Microsecond
	MostSpin    = 2 * time.Millisecond
)

const (
	// assumedWake is what a wake-up costs as long as none was measured.
	assumedWake = 20 * time.Microsecond

	tryWaits    = 8    // waits in vain that a try lasts
	farTry      = 4    // a try is so many times shorter if answers seem to be out of reach
	accountMost = 16   // and at most, when it has paid
	nearSpins   = 8    // a wait of up to so many budgets is near: spinning could end it
	sampleEvery = 2048 // so many waits
	samples     = 8    // are spent asleep, to learn how long they take then; a power of two
	unsettled   = 2    // but for the first, in which the other end may spin still
	reachable   = 2    // a wait of up to so many budgets is one that a spin could have found
	outlier     = 4    // times the mean is what counts of one that takes longer
	creditShare = 8    // so much of what a phase earns is for later tries that do not pay
	creditMost  = 16   // and at most as much as so many of them
	farMost     = 2    // waits for something far, one after the other, until it sleeps
	leastPeriod = 4    // after a phase that has paid
	firstPeriod = 64   // after the first that has not
	mostPeriod  = 4096 // and at most
	farPeriod   = 1024 // between two spins for what is far
	longShare   = 128  // is leastShare and mostShare if a spin may be longer than DefaultSpin
	leastShare  = 16   // the time until the next try is so many times what the first has lost
	mostShare   = 32   // and for those that follow
	restMost    = 2 * time.Second
	leastBudget = 2 * time.Microsecond
)

// Set chooses the policy and forgets what was learned: never (zero), a fixed bound, or
// adaptive with a bound (zero: DefaultSpin to MostSpin). A negative max is zero.
func (s *Spinner) Set(max time.Duration, adaptive bool) {
	free := adaptive && max <= 0
	if max <= 0 {
		max = 0
		if adaptive {
			max = DefaultSpin
		}
	}
	*s = Spinner{max: max, adaptive: adaptive, free: free, period: samples}
}

// Budget gives the longest time of the next spin; zero: sleep at once.
func (s *Spinner) Budget() time.Duration {
	switch {
	case !s.adaptive:
		return s.max
	case !s.on || s.far >= farMost || s.waits%sampleEvery < samples:
		return 0
	}
	return s.reach()
}

// reach is as long as answers take, but not less than what a sleep takes: to give up
// earlier loses more than it saves.
func (s *Spinner) reach() time.Duration {
	switch {
	case s.pace > 0:
		return min(max(s.pace+4*s.dev, s.slept, leastBudget), s.max)
	case s.slept > 0:
		return min(max(2*s.slept, leastBudget), s.max)
	}
	return s.max
}

// Learns reports whether Hit and Miss matter, so that others need not measure.
func (s *Spinner) Learns() bool { return s.adaptive }

// Hit says that a spin found something after a time.
func (s *Spinner) Hit(took time.Duration) {
	if !s.adaptive {
		return
	}
	took = min(max(took, 0), restMost)
	s.waits++
	s.far = 0
	gain := assumedWake
	if s.slept > 0 {
		gain = s.slept - took
	}
	if took <= s.max {
		s.answer(took)
	} else {
		gain = min(gain, s.max-took) // the processor was with others
	}
	worth := gain
	if took > DefaultSpin && took <= s.max {
		if gain -= took - DefaultSpin; gain < 0 {
			worth = -took
		}
	}
	s.book(gain, worth)
}

// Miss says that a spin of a length found nothing, or that none was made (zero), and that
// the whole wait then took so long; zero if that is not known, as the wait was given up.
func (s *Spinner) Miss(spun, total time.Duration) {
	if !s.adaptive {
		return
	}
	spun, total = min(max(spun, 0), restMost), max(total, 0)
	at := s.waits % sampleEvery
	settled := at >= unsettled
	s.waits++
	if spun == 0 && settled && total > 0 && at < samples && (s.least == 0 || total < s.least) {
		s.least = total
	}
	if at == samples-1 {
		s.sampled()
	}
	near := total > 0 && total <= nearSpins*s.max
	if near {
		s.far = 0
	} else if s.far < farMost {
		s.far++
	}
	if spun > 0 {
		if near && total <= s.max {
			s.answer(total) // a longer spin would have found it
		}
		s.book(-spun, -spun)
		return
	}
	s.rest = max(s.rest-min(total, restMost), 0)
	if settled && total > 0 && total <= reachable*s.max {
		s.asleep(total)
	}
	switch {
	case !near && s.waits%farPeriod != 0:
	case !s.on && s.rest == 0 && s.waits%s.period == 0:
		s.begin()
		fallthrough
	case s.on:
		s.far = min(s.far, farMost-1) // one spin for what is far
	}
}

// sampled ends the samples: it sets the longest spin. The shortest of them counts, as others may
// have been for something that came late.
func (s *Spinner) sampled() {
	least := s.least
	s.least = 0
	if !s.free || least == 0 {
		return
	}
	if s.max = max(least+least/4, DefaultSpin); s.max > MostSpin {
		s.max = DefaultSpin // out of reach
	}
	if s.slept == 0 && least <= reachable*s.max {
		s.asleep(least)
	}
}

// begin starts a phase of spinning, with the account of one who tries.
func (s *Spinner) begin() {
	s.on, s.phase = true, 0
	s.pace, s.dev = 0, 0
	s.account = tryWaits * s.reach()
	if s.slept == 0 || s.slept > s.max {
		s.account /= farTry
	}
}

// book changes the account, and ends the phase if it is empty. worth is what the phase was good
// for.
func (s *Spinner) book(gain, worth time.Duration) {
	if !s.on {
		return // of a spin that another waiter had begun before
	}
	s.phase = min(s.phase+worth, time.Hour)
	if s.account = min(s.account+gain, accountMost*s.reach()); s.account > 0 {
		return
	}
	s.on = false
	switch {
	case s.phase > 0:
		s.credit = min(s.credit+s.phase/creditShare, creditMost*tryWaits*s.reach())
		s.period = leastPeriod
	case s.credit+s.phase > 0:
		s.credit += s.phase
		s.period, s.rest = leastPeriod, 0
		return
	case s.period == samples && -gain > 2*s.max:
		// Who loses the processor in the first try of all may have had bad luck: a program that
		// starts has other things to do. The second is without delay.
		s.period, s.rest = firstPeriod, 0
		return
	default:
		s.period = min(max(2*s.period, firstPeriod), mostPeriod)
	}
	// What is lost to others, who take the processor for a time slice and more, is to be
	// little against the time until it may be lost again. Once it may have been bad luck.
	share := min(max(time.Duration(s.period)/4, leastShare), mostShare)
	if s.max > DefaultSpin && s.free {
		share = longShare
	}
	s.rest = share * min(max(-s.phase, 0), restMost/share)
}

// asleep learns the time of a wait without a spin for something that one may find.
func (s *Spinner) asleep(took time.Duration) {
	if s.slept > 0 {
		took = min(took, outlier*s.slept)
	}
	s.asked = min(s.asked+1, 8)
	s.slept = max(s.slept+(took-s.slept)/s.asked, 1)
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
