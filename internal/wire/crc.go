package wire

import (
	"encoding/binary"
	"hash/crc32"
)

// The register of the CRC in the reflected form that hash/crc32 uses, without the
// final inversion: bit 31 is the coefficient of x^0, and the next bit to come is
// exclusive-ored to bit 0.

// afterOnes is the register after the eight bytes of ones that stand for the LRH.
const afterOnes = 0xDEBB20E3

// slices[k][v] is the register after byte v and k zero bytes, from 0.
var slices = func() (t [4][256]uint32) {
	t[0] = *crc32.IEEETable
	for k := 1; k < 4; k++ {
		for v, r := range t[k-1] {
			t[k][v] = r>>8 ^ t[0][r&0xFF]
		}
	}
	return t
}()

// step4 runs the register through four zero bytes.
func step4(r uint32) uint32 {
	return slices[3][r&0xFF] ^ slices[2][r>>8&0xFF] ^ slices[1][r>>16&0xFF] ^ slices[0][r>>24]
}

// advance runs the register through b, whose length is a multiple of four.
func advance(r uint32, b []byte) uint32 {
	for ; len(b) >= 4; b = b[4:] {
		r = step4(r ^ binary.LittleEndian.Uint32(b))
	}
	return r
}

// effect gives, for the two bytes of a big-endian 16-bit field, by how much each value
// of each changes the register n bytes behind the field.
func effect(n int) (t [2][256]uint32) {
	for i := range t {
		for v := range t[i] {
			r := slices[0][v]
			for range n + 1 - i {
				r = r>>8 ^ slices[0][r&0xFF]
			}
			t[i][v] = r
		}
	}
	return t
}

// Effects on the register before the BTH.
var (
	ipLen   = effect(16 + 8)          // total length, bytes 2 and 3 of an IPv4 header
	ipID    = effect(14 + 8)          // identification, bytes 4 and 5
	udpLen  = effect(2)               // length, bytes 4 and 5 of a UDP header
	bothLen = func() [2][256]uint32 { // payload length of IPv6, bytes 4 and 5, and the same in UDP
		t := effect(34 + 8)
		for i := range t {
			for v := range t[i] {
				t[i][v] ^= udpLen[i][v]
			}
		}
		return t
	}()
)

// inverses[0][n] is x^-8n, inverses[1][n] is x^-8(256n), as polynomials modulo that of
// the CRC.
var inverses = func() (t [2][256]uint32) {
	step := back8(1 << 31)
	for i := range t {
		t[i][0] = 1 << 31
		for n := 1; n < 256; n++ {
			t[i][n] = multiply(t[i][n-1], step)
		}
		step = multiply(t[i][255], step)
	}
	return t
}()

// back8 runs the register backwards over one zero byte.
func back8(r uint32) uint32 {
	for range 8 {
		if r&(1<<31) != 0 {
			r = (r^crc32.IEEE)<<1 | 1
		} else {
			r <<= 1
		}
	}
	return r
}

// rewind runs the register backwards over n zero bytes, 0 <= n < 65536: it gives the r
// that n zero bytes turn into the argument.
func rewind(r uint32, n int) uint32 {
	r = multiply(r, inverses[0][n&0xFF])
	if hi := n >> 8 & 0xFF; hi != 0 {
		r = multiply(r, inverses[1][hi])
	}
	return r
}

// multiply multiplies two polynomials modulo that of the CRC, four bits at a time.
func multiply(a, b uint32) uint32 {
	// m[v] is b times the four coefficients in v; bit 3 is that of x^0.
	var m [16]uint32
	m[8] = b
	m[4] = b>>1 ^ crc32.IEEE&-(b&1)
	m[2] = m[4]>>1 ^ crc32.IEEE&-(m[4]&1)
	m[1] = m[2]>>1 ^ crc32.IEEE&-(m[2]&1)
	m[3] = m[2] ^ m[1]
	m[5], m[6], m[7] = m[4]^m[1], m[4]^m[2], m[4]^m[3]
	for i := 9; i < 16; i++ {
		m[i] = m[8] ^ m[i-8]
	}
	r := uint32(0)
	for range 8 {
		r = r>>4 ^ nibble[r&15] ^ m[a&15]
		a >>= 4
	}
	return r
}

// nibble[v] is what four bits that leave the register bring back.
var nibble = func() (t [16]uint32) {
	for v := range t {
		r := uint32(v)
		for range 4 {
			r = r>>1 ^ crc32.IEEE&-(r&1)
		}
		t[v] = r
	}
	return t
}()
