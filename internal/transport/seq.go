package transport

import "github.com/verbena-rdma/verbena/ib"

// seq is a packet sequence number that does not wrap: its low 24 bits are the PSN. The
// wire tells numbers apart that are less than 2^23 from one another (IBTA Vol 1
// §9.7.1); with what was sent and received before, that is enough to know all bits.
type seq uint64

// firstSeq makes the number of the first packet. The offset keeps numbers before it
// positive.
func firstSeq(p ib.PSN) seq { return 1<<32 | seq(p) }

// psn gives the number that goes on the wire.
func (s seq) psn() ib.PSN { return ib.PSN(s) & ib.PSNMask }

// near gives the number with PSN p that is closest to s.
func (s seq) near(p ib.PSN) seq { return s + seq(p.Sub(s.psn())) }
