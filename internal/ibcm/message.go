package ibcm

import (
	"errors"
	"strconv"
)

// Sizes in bytes.
const (
	MADLen    = 256 // a management datagram, the payload of a packet to QP1
	headerLen = 24
	dataLen   = MADLen - headerLen
)

// Attr says which message a MAD is (IBTA Vol 1 §12.6, table 99).
type Attr uint16

const (
	AttrREQ     Attr = 0x10
	AttrMRA     Attr = 0x11
	AttrREJ     Attr = 0x12
	AttrREP     Attr = 0x13
	AttrRTU     Attr = 0x14
	AttrDREQ    Attr = 0x15
	AttrDREP    Attr = 0x16
	AttrSIDRREQ Attr = 0x17
	AttrSIDRREP Attr = 0x18
	AttrLAP     Attr = 0x19
	AttrAPR     Attr = 0x1A
)

var attrNames = [...]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"}

// Known reports whether a is one of the eleven messages.
func (a Attr) Known() bool { return a >= AttrREQ && a <= AttrAPR }

func (a Attr) String() string {
	if a.Known() {
		return attrNames[a-AttrREQ]
	}
	return "attribute 0x" + strconv.FormatUint(uint64(a), 16)
}

// The errors of Decode, Parse and PeekAttr, one for each cause. All wrap ErrMessage.
var (
	ErrMessage   = errors.New("ibcm: malformed message")
	ErrSize      = newMessageError("size is not 256 bytes")
	ErrClass     = newMessageError("not a CM datagram of a known version")
	ErrMethod    = newMessageError("method is not Send")
	ErrAttr      = newMessageError("unknown or unexpected attribute")
	ErrInfoLen   = newMessageError("length of additional information is above its field")
	ErrCMAHeader = newMessageError("private data does not begin with an address header")
)

type messageError struct{ text string }

func newMessageError(text string) error { return &messageError{text} }

func (e *messageError) Error() string { return "ibcm: " + e.text }
func (e *messageError) Unwrap() error { return ErrMessage }

// Header has the fields of the MAD header that are not the same in all CM messages.
type Header struct {
	// TID is the transaction: chosen by the sender of REQ, DREQ, LAP and SIDR_REQ and
	// repeated in the answers. Answers are not matched by it.
	TID uint64
	// Status is 0.
	Status uint16
	// ClassSpecific is 0.
	ClassSpecific uint16
	// Modifier is 0, or the ECE options in REQ, REP and SIDR_REP: what they mean is up
	// to the vendor in VendorID.
	Modifier uint32
}

// Message is one of *REQ, *MRA, *REJ, *REP, *RTU, *DREQ, *DREP, *SIDRREQ, *SIDRREP,
// *LAP and *APR.
//
// A message is a plain value without pointers: copying it copies all of it. Private
// data has the full size of its field, padded with zeros, as it has on the wire: where
// the data of a program ends is not known. Numbers that have fewer bits on the wire
// than in Go are cut by Encode. Bits that the standard reserves are ignored and sent as
// 0.
type Message interface {
	// Attr says which message it is.
	Attr() Attr
	// Head gives the header; what is changed there is encoded.
	Head() *Header
	// Encode overwrites b with the message.
	Encode(b *[MADLen]byte)
	// Decode sets the message from b, a whole MAD, whose attribute must fit. It keeps
	// no part of b. After an error the message has no meaning.
	Decode(b []byte) error
}

// PeekAttr checks the size and the header of b, whatever b is, and gives its attribute,
// which may be unknown.
func PeekAttr(b []byte) (Attr, error) {
	switch {
	case len(b) != MADLen:
		return 0, ErrSize
	case b[0] != 1 || b[1] != classCM || b[2] != 2:
		return 0, ErrClass
	case b[3] != methodSend:
		return 0, ErrMethod
	}
	return Attr(b[16])<<8 | Attr(b[17]), nil
}

const (
	classCM    = 0x07
	methodSend = 0x03
)

// Parse decodes any message.
func Parse(b []byte) (Message, error) {
	a, err := PeekAttr(b)
	if err != nil {
		return nil, err
	}
	m := newMessage(a)
	if m == nil {
		return nil, ErrAttr
	}
	if err := m.Decode(b); err != nil {
		return nil, err
	}
	return m, nil
}

func newMessage(a Attr) Message {
	switch a {
	case AttrREQ:
		return new(REQ)
	case AttrMRA:
		return new(MRA)
	case AttrREJ:
		return new(REJ)
	case AttrREP:
		return new(REP)
	case AttrRTU:
		return new(RTU)
	case AttrDREQ:
		return new(DREQ)
	case AttrDREP:
		return new(DREP)
	case AttrSIDRREQ:
		return new(SIDRREQ)
	case AttrSIDRREP:
		return new(SIDRREP)
	case AttrLAP:
		return new(LAP)
	case AttrAPR:
		return new(APR)
	}
	return nil
}
