package netio

import (
	"math/rand/v2"
	"net/netip"
	"os"
)

// loopbackSeed differs between processes, also between those that have the same number
// in namespaces of their own.
var loopbackSeed = rand.Uint32()

// PrivateLoopback gives an address of 127.0.0.0/8 that no other process is likely to
// hold, other than 127.0.0.1; the n-th call gives the n-th choice. Choice 0 follows the
// process number, so that it is stable and differs from that of every process in the
// same namespace; the others are random, and differ from every choice 0.
func PrivateLoopback(n int) netip.Addr { return privateLoopback(os.Getpid(), loopbackSeed, n) }

// privateLoopback spreads choices over two ranges of 2^22 addresses each: 127.64/10 by
// process number, which has at most 22 bits on Linux, and 127.128/10. Low and high
// neighbours stay free: other software uses 127.0.0.x and 127.0.1.1, and
// 127.255.255.255 is a broadcast address.
func privateLoopback(pid int, seed uint32, n int) netip.Addr {
	const mask = 1<<22 - 1
	base, v := uint32(127<<24|64<<16), uint32(pid)
	if n > 0 {
		// An odd step goes through the whole range before it repeats.
		base, v = 127<<24|128<<16, seed+uint32(n)*0x9e3779b1
	}
	v = base + v&mask
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}
