package ibcm

import "time"

// Numbers that go onto the wire. They tell the peer how long to wait for us; with
// these a lost message costs half a second, not the four seconds of a kernel's
// default.
const (
	// ResponseTimeout is the code (4.096 µs × 2^17 = 0.54 s) of both CM response
	// timeouts in our requests (IBTA Vol 1 §12.7.12, §12.7.19).
	ResponseTimeout = 17

	// peerRetries is the Max CM Retries of our requests: how often the peer may repeat
	// its reply (§12.7.27). The field has four bits.
	peerRetries = 15

	// serviceTimeout is the code (4.096 µs × 2^23 = 34 s) that our MRA asks the peer
	// to wait (§12.7.32). A kernel asks for 24, which leaves peers of a killed process
	// waiting for twice as long. With the 15 tries of a kernel it still gives a slow
	// program eight minutes.
	serviceTimeout = 23

	// maxServiceTimeout bounds what a peer's MRA can ask of us: 4.096 µs × 2^24 = 69 s,
	// which is what the Linux kernel asks. Asking again early costs one datagram.
	maxServiceTimeout = 24
)

// How often and how fast we repeat. The first repetition comes after firstRetry
// whatever the peer has announced: repeating early is harmless, as every message has an
// answer for its duplicates, and a loss is more likely than a peer that needs longer.
// Each interval is drawn from the range between it and a quarter more, so that a crowd
// does not stay in step.
const (
	firstRetry = 512 * time.Millisecond

	// Requests grow to one second only, as a listener whose backlog is full drops them
	// without a word and we want to be there when there is room. 30 tries: half a
	// minute until a peer counts as unreachable.
	requestTries    = 30
	requestRetryCap = 1 * time.Second

	// Replies and disconnects grow to what a kernel takes for one answer (code 20).
	// A reply may go to a victim whose address was forged in the request: few tries.
	replyTries      = 8
	disconnectTries = 15
	retryCap        = 4300 * time.Millisecond

	// abandonedTries are the tries of a disconnect that nobody waits for.
	abandonedTries = 8
)

// How long we remember what is over.
const (
	// A connection stays in TIMEWAIT as long as one acknowledgement may take (§12.9.8.4),
	// within these bounds.
	minTimeWait = 500 * time.Millisecond
	maxTimeWait = 4 * time.Second

	// A request that was rejected is remembered so long that its repetition, which means
	// that the answer was lost, gets the same answer instead of being shown to the
	// program as a new request. Kernels repeat after up to 6.1 s.
	rejectedTime = 8 * time.Second
)

// What a crowd of peers, or one that lies, can make us hold.
const (
	// halfOpen is the number of requests that are being answered and not established, by
	// all listeners together.
	halfOpen = 8192

	// maxRejected and maxTimeWaits bound what is remembered of the past; beyond, the
	// oldest is forgotten.
	maxRejected  = 1024
	maxTimeWaits = 65536

	// Answers to messages that belong to no connection: so many at once, and so many a
	// second. An answer is never longer than its question.
	strayBurst = 1024
	strayRate  = 1024
)

// MaxPrivate lengths (§12.6). A request of librdmacm spends 36 of its 92 bytes on the
// addresses of both ends.
const (
	MaxPrivateREQ = 92
	MaxPrivateREP = 196
	MaxPrivateREJ = 148
	MaxARI        = 72
)
