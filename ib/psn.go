package ib

import "fmt"

// PSN is a packet sequence number: 24 bits, compared in serial order (IBTA Vol 1
// §9.7.1). The upper 8 bits are 0 in every value that a function of this package gives.
type PSN uint32

// PSNMask has the 24 bits of a packet sequence number.
const PSNMask PSN = 1<<24 - 1

// PSNWindow is the greatest number of packets between two numbers whose order is known.
const PSNWindow = 1 << 23

// Add gives the number n packets later, or earlier if n is negative.
func (p PSN) Add(n int) PSN { return (p + PSN(uint32(n))) & PSNMask }

// Next gives the number that follows p.
func (p PSN) Next() PSN { return (p + 1) & PSNMask }

// Sub gives the signed distance from o to p, -2^23 .. 2^23-1: positive if p comes
// after o, so that o.Add(p.Sub(o)) == p.
func (p PSN) Sub(o PSN) int { return int(int32((p-o)<<8) >> 8) }

// Before reports whether p comes before o in 24-bit serial order. Numbers that are
// exactly 2^23 apart are each before the other.
func (p PSN) Before(o PSN) bool { return int32((p-o)<<8) < 0 }

// After reports whether p comes after o in 24-bit serial order.
func (p PSN) After(o PSN) bool { return int32((p-o)<<8) > 0 }

// In reports whether p is one of the n numbers from first on; n is at most 2^24.
func (p PSN) In(first PSN, n int) bool { return int((p-first)&PSNMask) < n }

func (p PSN) String() string { return fmt.Sprintf("0x%06x", uint32(p)) }
