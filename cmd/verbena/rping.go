package main

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/verbena-rdma/verbena/ib"
)

// The protocol of rdma-core's rping, without any I/O. Each exchange is
//
//	client                                  server
//	SEND its source buffer          →
//	                                ←       READ it
//	                                ←       SEND "go on"
//	SEND its target buffer          →
//	                                ←       WRITE to it what was read
//	                                ←       SEND "go on"
//
// A buffer is named by 16 bytes, big endian: address 8, key 4, length 4. "Go on" has
// the same size; its content does not matter.

const (
	rpingPort  = 7174
	rpingText  = "rdma-ping-%d: "
	rpingMin   = 23    // bytes: the text with the largest number, and the final 0
	rpingMax   = 65535 // what rping allows
	rpingSize  = 64    // unless told otherwise
	messageLen = ib.RemoteLen

	// Letters follow the text: from 'A' on, one further with each exchange, to 'z'.
	firstLetter, lastLetter = 'A', 'z'
)

// fillPing writes the data of an exchange.
func fillPing(b []byte, seq int) {
	seq &= 1<<31 - 1
	n := copy(b, fmt.Appendf(nil, rpingText, seq))
	letter := byte(firstLetter + seq%(lastLetter-firstLetter+1))
	for i := n; i < len(b); i++ {
		b[i] = letter
		letter = nextLetter(letter)
	}
	b[len(b)-1] = 0
}

func nextLetter(c byte) byte {
	if c == lastLetter {
		return firstLetter
	}
	return c + 1
}

// checkPing says what is wrong with data that a client offers. It does not insist on a
// number or a first letter, as programs differ in where they begin.
func checkPing(b []byte) error {
	const head = "rdma-ping-"
	rest, ok := bytes.CutPrefix(b, []byte(head))
	if !ok {
		return dataError(b, 0)
	}
	digits := 0
	for digits < len(rest) && '0' <= rest[digits] && rest[digits] <= '9' {
		digits++
	}
	text, ok := bytes.CutPrefix(rest[digits:], []byte(": "))
	if !ok || digits == 0 {
		return dataError(b, len(head)+digits)
	}
	for i := range text {
		switch {
		case i == len(text)-1:
			ok = text[i] == 0
		case i == 0:
			ok = firstLetter <= text[i] && text[i] <= lastLetter
		default:
			ok = text[i] == nextLetter(text[i-1])
		}
		if !ok {
			return dataError(b, len(b)-len(text)+i)
		}
	}
	return nil
}

func dataError(b []byte, at int) error {
	return fmt.Errorf("its data is not that of rping: byte %d of %d is %#02x", at, len(b), b[min(at, len(b)-1)])
}

// comparePing says where data that came back differs.
func comparePing(got, want []byte) error {
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("the data that came back is wrong: byte %d of %d is %#02x instead of %#02x", i, len(want), got[i], want[i])
		}
	}
	return nil
}

// action is what a side has to do next.
type action uint8

const (
	actNothing   action = iota // wait for the next message
	actSendNext                // client: name the target buffer
	actFinished                // client: the data is back
	actRead                    // server: read from where
	actGoOn                    // server: say "go on"
	actWriteGoOn               // server: write there what was read, then say "go on"
)

// clientState follows an exchange on the client's side.
type clientState uint8

const (
	clientIdle clientState = iota
	clientOffered
	clientAsked
)

// begin starts an exchange; the source buffer has to be named.
func (s *clientState) begin() { *s = clientOffered }

// received takes a message from the server.
func (s *clientState) received(n int) (action, error) {
	if n != messageLen {
		return actNothing, sizeError(n)
	}
	switch *s {
	case clientOffered:
		*s = clientAsked
		return actSendNext, nil
	case clientAsked:
		*s = clientIdle
		return actFinished, nil
	}
	return actNothing, fmt.Errorf("it sent a message that nothing asked for")
}

func sizeError(n int) error {
	return fmt.Errorf("it does not speak rping's protocol: a message of %d bytes instead of %d", n, messageLen)
}

// serverState follows an exchange on the server's side.
type serverState struct {
	limit int // of the data
	phase serverPhase
	at    ib.Remote // what the client named last
	size  int       // of the data that was read
	done  int       // exchanges
}

type serverPhase uint8

const (
	serverIdle serverPhase = iota
	serverReading
	serverRead
)

// received takes a message from the client.
func (s *serverState) received(b []byte) (action, error) {
	if len(b) != messageLen {
		return actNothing, sizeError(len(b))
	}
	if err := s.at.UnmarshalBinary(b); err != nil {
		return actNothing, err
	}
	n := int(s.at.Len)
	switch s.phase {
	case serverIdle:
		if n < rpingMin || n > s.limit {
			return actNothing, fmt.Errorf("it wants to exchange %s bytes; %d to %d are allowed here", strconv.FormatUint(uint64(s.at.Len), 10), rpingMin, s.limit)
		}
		s.phase, s.size = serverReading, n
		return actRead, nil
	case serverRead:
		if n < s.size {
			return actNothing, fmt.Errorf("it offered %d bytes and takes only %d back", s.size, n)
		}
		s.phase = serverIdle
		s.done++
		return actWriteGoOn, nil
	}
	return actNothing, fmt.Errorf("it sent a message while its data was being read")
}

// read takes the data that was read.
func (s *serverState) read(b []byte) (action, error) {
	if s.phase != serverReading {
		return actNothing, fmt.Errorf("data was read that nothing asked for")
	}
	if err := checkPing(b); err != nil {
		return actNothing, err
	}
	s.phase = serverRead
	return actGoOn, nil
}
