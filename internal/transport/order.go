package transport

import "encoding/binary"

// putHost writes v in the order of the host: what an atomic gives back is a number of
// this side (IBTA Vol 1 §9.4.5).
func putHost(b *[8]byte, v uint64) { binary.NativeEndian.PutUint64(b[:], v) }
