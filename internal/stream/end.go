package stream

import (
	"fmt"
	"time"
)

// writeState is how far this side's end of data is.
type writeState uint8

const (
	writeOpen   writeState = iota
	writeEnding            // the word is behind what is pending
	writeEnded             // it was posted
)

// ending is how a connection ends.
type ending struct {
	write      writeState
	readClosed bool // CloseRead or Close: what arrives is thrown away
	peerFin    bool // the peer ended its data
	peerClosed bool // the peer reads no more either
	peerWhy    Reason
	closing    bool   // Close
	why        Reason // for the last word
	lastDue    bool   // the last word is to be sent
	lastSent   uint64 // its id
	lastDone   bool   // it has arrived
	err        error  // why it failed
	timed      bool
	deadline   time.Duration // of Close, or of the last word
	gone       bool          // the queue pair works no more
	over       bool          // Finished or Failed was given
}

// over ends the machine.
func (e *Engine) over(ev Events) {
	if e.end.over {
		return
	}
	e.end.over, e.end.timed, e.end.lastDue = true, false, false
	e.events |= ev | Readable | Writable
}

// result is the event of an end.
func (e *Engine) result() Events {
	if e.end.err != nil && e.end.err != ErrAborted {
		return Failed
	}
	return Finished
}

// die ends the connection for a reason, after a last word to the peer if it can be sent.
func (e *Engine) die(err error, why Reason) {
	if e.end.over || e.end.err != nil {
		return
	}
	e.end.err = err
	e.events |= Readable | Writable
	e.drop()
	if e.end.gone || e.end.lastSent != 0 && e.end.lastDone {
		e.over(e.result())
		return
	}
	e.end.why = why
	e.end.lastDue = e.end.lastSent == 0
	e.end.timed, e.end.deadline = true, e.now+lastWordTime
}

// protocolError is die with a rule that the peer broke.
func (e *Engine) protocolError(what string, word uint32) {
	e.die(&ProtocolError{Mode: e.cfg.Mode, What: what, Word: word, HasWord: true}, BadProtocol)
}

// protocolLimit is protocolError with a number that is too large.
func (e *Engine) protocolLimit(what string, word uint32, got, limit uint64) {
	e.die(&ProtocolError{Mode: e.cfg.Mode, What: what, Word: word, HasWord: true, Got: got, Max: limit, HasMax: true}, BadProtocol)
}

// writeErr says why nothing more can be written.
func (e *Engine) writeErr() error {
	switch end := &e.end; {
	case end.err != nil:
		return end.err
	case end.write != writeOpen:
		return ErrShutdown
	case end.peerClosed && end.peerWhy != Normal:
		return &PeerError{end.peerWhy}
	case end.peerClosed:
		return ErrPeerClosed
	}
	return nil
}

// Err gives why the connection is over: nil while it works and after an orderly end.
// Errors: ErrReset (*PeerError if the peer said why), ErrKeepAlive, ErrLinger,
// ErrAborted, ErrTransport, *ProtocolError.
func (e *Engine) Err() error { return e.end.err }

// PeerClosed reports whether the peer has closed, or the connection is over or lost: it
// writes no more to a map, and answers nothing.
func (e *Engine) PeerClosed() bool { return e.end.peerClosed || e.end.gone || e.end.err != nil }

// CloseWrite ends this side's data behind what was committed. The peer reads the end.
func (e *Engine) CloseWrite() {
	if e.end.write == writeOpen {
		e.end.write = writeEnding
		e.events |= Writable
	}
}

// CloseRead makes Peek give io.EOF at once. What arrives is thrown away, and the peer is
// not told.
func (e *Engine) CloseRead() {
	if !e.end.readClosed {
		e.end.readClosed = true
		e.discard()
		e.events |= Readable
	}
}

// SetLinger changes Config.Linger, for a Close that follows; 0 is no time at all.
func (e *Engine) SetLinger(d time.Duration) { e.cfg.Linger = min(d, longest) }

// Close does both, and ends the connection: Finished comes when the peer's device has
// taken everything and the last word, Failed with ErrLinger when it did not in time. If
// the peer has closed, what was not sent is dropped. A Compatible peer is answered for
// a while, as it may wait for acknowledgements.
func (e *Engine) Close(now time.Duration) {
	e.now = now
	end := &e.end
	if end.closing {
		return
	}
	end.closing = true
	e.CloseRead()
	e.CloseWrite()
	switch {
	case end.over || end.err != nil:
		return
	case end.gone || end.peerClosed && e.v != nil:
		e.over(Finished)
		return
	case end.peerClosed:
		e.drop()
	}
	end.timed, end.deadline = true, now+e.cfg.Linger
	if end.lastSent == 0 {
		end.lastDue = true
	} else if end.lastDone {
		e.linger()
	}
}

// Abort ends the connection without waiting: what was not posted is dropped, and one last
// request tells the peer, if it can be sent; Finished comes then.
func (e *Engine) Abort(now time.Duration, why Reason) {
	e.now = now
	e.end.closing = true
	e.CloseRead()
	e.CloseWrite()
	e.die(ErrAborted, why)
}

// lastAcked: the last word has arrived at the peer's device.
func (e *Engine) lastAcked() {
	end := &e.end
	if end.lastDone {
		return
	}
	end.lastDone = true
	switch {
	case end.err != nil:
		e.over(e.result())
	case end.closing && e.v != nil:
		e.over(Finished)
	case end.closing:
		e.linger()
	}
}

// linger keeps answering a compatible peer that has closed too for a moment, as it may
// wait for acknowledgements, and one that has not until the time of Close is over.
func (e *Engine) linger() {
	end := &e.end
	if at := e.now + lastWordTime; end.peerClosed && (!end.timed || at < end.deadline) {
		end.timed, end.deadline = true, at
	}
}

// tooLate: the time of Close, or of the last word, is over.
func (e *Engine) tooLate() {
	end := &e.end
	switch {
	case end.err != nil:
		e.over(e.result())
	case end.lastDone:
		e.over(Finished)
	default:
		e.die(ErrLinger, Lingered)
	}
}

// Disconnected says that the peer ended the connection by way of the connection manager
// (DREQ), and that all completions before have been passed. Without a closing word of
// the peer that is a reset.
func (e *Engine) Disconnected() {
	end := &e.end
	if end.over {
		return
	}
	end.gone = true
	switch {
	case end.err != nil:
		e.over(e.result())
	case end.peerClosed && !end.closing:
		e.events |= Readable | Writable
	case end.peerClosed || end.lastDone || end.closing && e.c != nil && e.delivered():
		e.over(Finished)
	default:
		e.die(ErrReset, Normal)
	}
}

// delivered reports whether the peer's device is known to have everything that was
// committed. (A message that was copied into its request keeps nothing of the send buffer.)
func (e *Engine) delivered() bool {
	o := &e.out
	return o.pending() == 0 && o.write.n == 0 && o.done >= o.lastData
}

// Fail says that the queue pair works no more: a completion failed, or the device is
// gone. The connection is over, unless its end came first. Flushed completions say
// nothing: they follow the first failure, or Disconnected.
func (e *Engine) Fail(err error) {
	end := &e.end
	if end.over {
		return
	}
	end.gone = true
	switch {
	case end.err != nil:
		e.over(e.result())
	case end.peerClosed && !end.closing:
		e.events |= Readable | Writable
	case end.peerClosed || end.closing && end.lastDone:
		e.over(Finished)
	default:
		if err == nil {
			err = ErrTransport
		} else {
			err = fmt.Errorf("%w: %w", ErrTransport, err)
		}
		e.die(err, Normal)
	}
}
