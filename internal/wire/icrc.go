package wire

import "net/netip"

// Flow computes the ICRC of the packets from one address to another. Its zero value is
// not valid; make one with NewFlow. It is a value that is only read: any goroutine may
// use it.
type Flow struct {
	src, dst netip.AddrPort
}

// NewFlow takes UDP source and destination. Both must be of one family.
func NewFlow(src, dst netip.AddrPort) (f Flow) { return Flow{src, dst} }

// Put fills the last four bytes of b, a whole UDP payload, with its ICRC. id is the
// IPv4 identification that the packet will carry: 0, or its index in a segmented send.
func (f *Flow) Put(b []byte, id uint16) {}

// Check verifies the ICRC in the last four bytes of b. On IPv4 the identification is
// not known to a UDP socket: hint is tried first, then all others at once at the cost
// of 16 of the 32 bits. It gives the identification that fits.
func (f *Flow) Check(b []byte, hint uint16) (id uint16, ok bool) { return 0, false }
