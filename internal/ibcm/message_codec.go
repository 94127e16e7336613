package ibcm

import "encoding/binary"

// codec moves the fields of a message from or to a buffer. Each message describes its
// layout once, in a function that takes a codec, so that encoding and decoding cannot
// differ. Offsets count from the end of the MAD header, as the tables of IBTA Vol 1
// §12.6 do.
type codec struct {
	p      *[dataLen]byte
	encode bool
}

func u8[T ~uint8](c codec, off int, v *T) {
	if c.encode {
		c.p[off] = byte(*v)
	} else {
		*v = T(c.p[off])
	}
}

func u16[T ~uint16](c codec, off int, v *T) {
	if c.encode {
		binary.BigEndian.PutUint16(c.p[off:], uint16(*v))
	} else {
		*v = T(binary.BigEndian.Uint16(c.p[off:]))
	}
}

func u24[T ~uint32](c codec, off int, v *T) {
	if c.encode {
		c.p[off], c.p[off+1], c.p[off+2] = byte(*v>>16), byte(*v>>8), byte(*v)
	} else {
		*v = T(c.p[off])<<16 | T(c.p[off+1])<<8 | T(c.p[off+2])
	}
}

func u32[T ~uint32](c codec, off int, v *T) {
	if c.encode {
		binary.BigEndian.PutUint32(c.p[off:], uint32(*v))
	} else {
		*v = T(binary.BigEndian.Uint32(c.p[off:]))
	}
}

func u64[T ~uint64](c codec, off int, v *T) {
	if c.encode {
		binary.BigEndian.PutUint64(c.p[off:], uint64(*v))
	} else {
		*v = T(binary.BigEndian.Uint64(c.p[off:]))
	}
}

// bits moves n bits of a byte, the lowest of them at bit low. The buffer is 0 before
// encoding.
func bits[T ~uint8](c codec, off, low, n int, v *T) {
	mask := byte(1<<n - 1)
	if c.encode {
		c.p[off] |= byte(*v) & mask << low
	} else {
		*v = T(c.p[off] >> low & mask)
	}
}

func flag(c codec, off, bit int, v *bool) {
	if !c.encode {
		*v = c.p[off]>>bit&1 != 0
	} else if *v {
		c.p[off] |= 1 << bit
	}
}

// flow moves the 20 bits of a flow label.
func flow(c codec, off int, v *uint32) {
	if c.encode {
		c.p[off], c.p[off+1] = byte(*v>>12), byte(*v>>4)
		c.p[off+2] |= byte(*v) << 4
	} else {
		*v = uint32(c.p[off])<<12 | uint32(c.p[off+1])<<4 | uint32(c.p[off+2])>>4
	}
}

func raw(c codec, off int, v []byte) {
	if c.encode {
		copy(c.p[off:], v)
	} else {
		copy(v, c.p[off:])
	}
}

// encode writes the header and clears the rest.
func (h *Header) encode(b *[MADLen]byte, a Attr) codec {
	*b = [MADLen]byte{1, classCM, 2, methodSend}
	binary.BigEndian.PutUint16(b[4:], h.Status)
	binary.BigEndian.PutUint16(b[6:], h.ClassSpecific)
	binary.BigEndian.PutUint64(b[8:], h.TID)
	binary.BigEndian.PutUint16(b[16:], uint16(a))
	binary.BigEndian.PutUint32(b[20:], h.Modifier)
	return codec{(*[dataLen]byte)(b[headerLen:]), true}
}

// decode reads and checks the header.
func (h *Header) decode(b []byte, want Attr) (codec, error) {
	a, err := PeekAttr(b)
	if err != nil {
		return codec{}, err
	}
	if a != want {
		return codec{}, ErrAttr
	}
	h.Status = binary.BigEndian.Uint16(b[4:])
	h.ClassSpecific = binary.BigEndian.Uint16(b[6:])
	h.TID = binary.BigEndian.Uint64(b[8:])
	h.Modifier = binary.BigEndian.Uint32(b[20:])
	return codec{(*[dataLen]byte)(b[headerLen:]), false}, nil
}

// Head gives the header of any message.
func (h *Header) Head() *Header { return h }
