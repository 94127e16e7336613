package ib

import "time"

// ackUnit is the time of code 0 in the exponential codes (IBTA Vol 1 §9.7.6.1.3).
const ackUnit = 4096 * time.Nanosecond

// AckTimeout gives the 5-bit code (4.096 µs × 2^n, n from 1) of the smallest time that
// is not below d, so a time-out never becomes shorter. Zero and negative times give 0,
// which means that the requester waits for ever; times beyond the greatest (2 h 26 min)
// give 31. CM response time-outs and the target's ACK delay have the same form.
func AckTimeout(d time.Duration) uint8 {
	if d <= 0 {
		return 0
	}
	for n := uint8(1); n < 31; n++ {
		if ackUnit<<n >= d {
			return n
		}
	}
	return 31
}

// AckTimeoutDuration gives the time of a code: 4.096 µs × 2^n, and 0, for ever, for 0.
// Only the low 5 bits count.
func AckTimeoutDuration(code uint8) time.Duration {
	code &= 31
	if code == 0 {
		return 0
	}
	return ackUnit << code
}

// rnrUnits: the times of IBTA Vol 1 §9.7.5.2.8, table 45, in units of 10 µs.
var rnrUnits = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimer gives the 5-bit code of the smallest time in the table of IBTA Vol 1
// §9.7.5.2.8 that is not below d. Zero and negative times give the shortest, code 1
// (10 µs). Code 0 is the longest, 655.36 ms, not zero: it is the answer for everything
// above 491.52 ms.
func RNRTimer(d time.Duration) uint8 {
	for n := uint8(1); n < 32; n++ {
		if RNRTimerDuration(n) >= d {
			return n
		}
	}
	return 0
}

// RNRTimerDuration gives the time of a code, 10 µs to 655.36 ms. Only the low 5 bits
// count.
func RNRTimerDuration(code uint8) time.Duration {
	return time.Duration(rnrUnits[code&31]) * 10 * time.Microsecond
}
