package stream

import (
	"errors"
	"fmt"
)

// Ends of a connection. Engine.Err, Peek and Room give them; they may be wrapped.
var (
	// ErrReset: the peer ended the connection without an orderly end of its data.
	ErrReset = errors.New("stream: connection reset by peer")
	// ErrPeerClosed: the peer does not read any more, so writing is of no use.
	ErrPeerClosed = errors.New("stream: peer has closed the connection")
	// ErrKeepAlive: the peer gave no sign of life in time.
	ErrKeepAlive = errors.New("stream: peer does not answer keep-alive probes")
	// ErrLinger: not everything that was written was delivered in the time that Close has.
	ErrLinger = errors.New("stream: peer did not take all data before the linger time was over")
	// ErrShutdown: CloseWrite or Close was called on this side.
	ErrShutdown = errors.New("stream: write after CloseWrite")
	// ErrAborted: Abort was called on this side.
	ErrAborted = errors.New("stream: connection aborted")
	// ErrTransport: the queue pair failed; it wraps what the owner gave to Fail.
	ErrTransport = errors.New("stream: queue pair failed")
)

// ProtocolError: the peer did what the protocol forbids. The connection is over; no
// memory outside of what was advertised was read or written.
type ProtocolError struct {
	Mode Mode
	What string // which rule was broken
	Word uint32 // the immediate word, if HasWord
	Got  uint64
	Max  uint64 // what was allowed, if HasMax

	HasWord, HasMax bool
}

func (e *ProtocolError) Error() string {
	s := "stream: peer broke the protocol (" + e.Mode.String() + "): " + e.What
	if e.HasMax {
		s += fmt.Sprintf(": %d, allowed %d", e.Got, e.Max)
	}
	if e.HasWord {
		s += fmt.Sprintf(", word %#08x", e.Word)
	}
	return s
}

// PeerError: the peer ended the connection and said why. It wraps ErrReset.
type PeerError struct {
	Reason Reason
}

func (e *PeerError) Error() string { return "stream: connection reset by peer: " + e.Reason.String() }

// Unwrap gives ErrReset.
func (e *PeerError) Unwrap() error { return ErrReset }

// HelloError says what is wrong with a hello.
type HelloError struct {
	Field string // as in Hello; "length" for the whole
	Off   int    // in the private data
	Got   uint64
	Want  string
}

func (e *HelloError) Error() string {
	return fmt.Sprintf("stream: hello: %s is %#x at byte %d, must be %s", e.Field, e.Got, e.Off, e.Want)
}

// ConfigError says which value of a Config or an argument is not possible.
type ConfigError struct {
	Field  string
	Reason string
}

func (e *ConfigError) Error() string { return "stream: " + e.Field + ": " + e.Reason }
