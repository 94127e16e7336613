package gosched

import "time"

// napper decides how waits sleep: in Go's poller, or in naps. It has no clock: its owner tells what
// became of each wait. Some waits in the poller say how long one takes, some naps are tried, and the
// quicker way stays: naps until a time has come to compare anew, or the poller, for a number of
// waits that doubles as long as naps do not pay. Waits for something far say nothing; after one, the
// first waits are in the poller.
type napper struct {
	near   int           // waits within reach, one after the other, at most napNear
	state  napState      // what waits are for
	asked  int           // waits that were measured in this state
	sum    time.Duration // what they took
	polled time.Duration // mean of the last waits in the poller
	rest   int           // waits until naps are compared anew
	period int           // the next rest after naps that did not pay
}

type napState uint8

const (
	napAsk  napState = iota // in the poller, to learn how long they take
	napTry                  // in naps, to compare
	napStay                 // in naps, which pay
	napRest                 // in the poller, as naps do not
)

const (
	napNear   = 2
	napAsks   = 8
	napTries  = 16
	napDoubt  = 4 // naps may take such a part more: of so few waits the mean is not sure
	napWorse  = 2 // a try ends at once if its waits have taken so many times what all may take
	napAgain  = 4096
	napFirst  = 256
	napLast   = 16384
	napBeyond = 4 // times the mean is what counts of a wait that took longer
)

// naps says whether the next wait is one.
func (n *napper) naps() bool {
	return (n.state == napTry || n.state == napStay) && n.near >= napNear
}

// measured says whether it matters how long a nap takes.
func (n *napper) measured() bool { return n.state == napTry }

// far says that a wait was for something out of reach.
func (n *napper) far() { n.near = 0 }

// tired is far for a nap that ended in vain.
func (n *napper) tired() { n.near = napNear - 1 }

// slept says that a wait in the poller took some time. again: the next waits are naps.
func (n *napper) slept(took time.Duration) (again bool) {
	if n.near < napNear {
		n.near++
		return n.near == napNear && n.naps()
	}
	switch n.state {
	case napAsk:
		if n.add(took); n.asked == napAsks {
			n.polled = n.sum / napAsks
			n.begin(napTry, 0)
			return true
		}
	case napRest:
		if n.rest--; n.rest <= 0 {
			n.begin(napAsk, 0)
		}
	}
	return false
}

// napped says that a nap found something, after some time if that is measured.
func (n *napper) napped(took time.Duration) {
	if n.state == napStay {
		if n.rest--; n.rest <= 0 {
			n.begin(napAsk, 0)
		}
		return
	}
	n.add(took)
	switch limit := n.polled * napTries; {
	case n.asked < napTries && n.sum < napWorse*limit:
	case n.asked == napTries && n.sum < limit+limit/napDoubt:
		n.period = 0
		n.begin(napStay, napAgain)
	default:
		n.period = min(max(2*n.period, napFirst), napLast)
		n.begin(napRest, n.period)
	}
}

func (n *napper) begin(s napState, rest int) { n.state, n.asked, n.sum, n.rest = s, 0, 0, rest }

func (n *napper) add(took time.Duration) {
	if n.asked > 0 {
		took = min(took, napBeyond*n.sum/time.Duration(n.asked))
	}
	n.asked++
	n.sum += took
}
