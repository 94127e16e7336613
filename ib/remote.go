package ib

import (
	"encoding/binary"
	"fmt"
	"io"
)

// RemoteLen is the size of the binary form of a Remote.
const RemoteLen = 16

// Remote names memory of a peer that this side may reach with one-sided
// operations. Programs send it to each other; the 16-byte form is big endian:
// address 8, key 4, length 4, as in rsockets.
type Remote struct {
	Addr uint64
	RKey RKey
	Len  uint32
}

// Slice gives n bytes from off on; it panics if they are not inside r, as slicing does.
func (r Remote) Slice(off, n int) Remote {
	if off < 0 || n < 0 || uint64(off) > uint64(r.Len) || uint64(n) > uint64(r.Len)-uint64(off) {
		panic(fmt.Sprintf("ib: Remote.Slice(%d, %d) out of range of %d bytes", off, n, r.Len))
	}
	return Remote{r.Addr + uint64(off), r.RKey, uint32(n)}
}

// AppendBinary appends the 16-byte form. The error is always nil.
func (r Remote) AppendBinary(b []byte) ([]byte, error) {
	b = binary.BigEndian.AppendUint64(b, r.Addr)
	b = binary.BigEndian.AppendUint32(b, uint32(r.RKey))
	return binary.BigEndian.AppendUint32(b, r.Len), nil
}

// MarshalBinary gives the 16-byte form. The error is always nil.
func (r Remote) MarshalBinary() ([]byte, error) { return r.AppendBinary(make([]byte, 0, RemoteLen)) }

// UnmarshalBinary reads the 16-byte form; b must have exactly that size.
func (r *Remote) UnmarshalBinary(b []byte) error {
	if len(b) != RemoteLen {
		return fmt.Errorf("ib: Remote of %d bytes: want %d", len(b), RemoteLen)
	}
	v, _, err := ConsumeRemote(b)
	*r = v
	return err
}

// ConsumeRemote parses the form of AppendBinary at the start of b and gives what
// follows: private data arrives padded with zeros. A short b gives an error that wraps
// io.ErrUnexpectedEOF. Whether the peer allows what it says is found out by use.
func ConsumeRemote(b []byte) (r Remote, rest []byte, err error) {
	if len(b) < RemoteLen {
		return Remote{}, b, fmt.Errorf("ib: Remote of %d bytes: %w", len(b), io.ErrUnexpectedEOF)
	}
	return Remote{
		Addr: binary.BigEndian.Uint64(b),
		RKey: RKey(binary.BigEndian.Uint32(b[8:])),
		Len:  binary.BigEndian.Uint32(b[12:]),
	}, b[RemoteLen:], nil
}

// String gives address+length and key: 0x7f0000001000+4096 rkey 0x1234.
func (r Remote) String() string { return fmt.Sprintf("0x%x+%d rkey %v", r.Addr, r.Len, r.RKey) }
