package stream

import "strconv"

// Reason says why a connection ended; it travels in the closing word of Verbena.
type Reason uint8

const (
	Normal         Reason = iota // Close
	Reset                        // Abort: linger time 0, or a program that gave up
	BadProtocol                  // the receiver of the word broke the protocol
	NoKeepAlive                  // the receiver of the word did not answer
	Lingered                     // the receiver of the word did not take all data in time
	GoingAway                    // the process ends
	OutOfResources               //
)

func (r Reason) String() string {
	switch r {
	case Normal:
		return "closed"
	case Reset:
		return "aborted"
	case BadProtocol:
		return "protocol error"
	case NoKeepAlive:
		return "keep-alive time-out"
	case Lingered:
		return "linger time-out"
	case GoingAway:
		return "going away"
	case OutOfResources:
		return "out of resources"
	}
	return "reason " + strconv.Itoa(int(r))
}
