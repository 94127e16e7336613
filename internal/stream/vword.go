package stream

import "strconv"

// vword is the immediate of Verbena: what the message is, and how far its sender is with
// the messages of the other direction.
//
//	31    28 27     20 19         10 9          0
//	| kind  |  value  |    ack      |   credit  |
//
// ack is the number of messages that were taken, credit that of receives that were
// posted, both since the connection began, modulo 1024.
type vword uint32

// Kinds of a message.
const (
	vData     = iota // value: how much waits behind it, as a power of two
	vCredit          // nothing but ack and credit
	vPing            // wants a PONG
	vPong            //
	vSize            // receives from a number on have 2^value bytes; those before another should be used up
	vVoid            // nothing, to use up a receive
	vFin             // no more data; the body has how many bytes there were
	vClose           // the last word; value: Reason; the body has how many bytes the program took
	vMap             // memory that the other side may write
	vUnmap           // wants it back
	vUnmapped        // gives it back
	vKinds
)

const (
	counterMod = 1 << 10
	// MaxOutstanding messages, or fewer, are between what was sent and what was taken, so that
	// counters modulo 1024 have one meaning.
	MaxOutstanding = counterMod/2 - 1
)

func makeVword(kind, value, ack, credit uint32) vword {
	return vword(kind<<28 | value&0xFF<<20 | ack%counterMod<<10 | credit%counterMod)
}

func (w vword) kind() uint32   { return uint32(w) >> 28 }
func (w vword) value() uint32  { return uint32(w) >> 20 & 0xFF }
func (w vword) ack() uint32    { return uint32(w) >> 10 % counterMod }
func (w vword) credit() uint32 { return uint32(w) % counterMod }

var vNames = [vKinds]string{"DATA", "CREDIT", "PING", "PONG", "SIZE", "VOID", "FIN", "CLOSE", "MAP", "UNMAP", "UNMAPPED"}

func (w vword) String() string {
	s := "KIND" + strconv.Itoa(int(w.kind()))
	if w.kind() < vKinds {
		s = vNames[w.kind()]
	}
	return s + " " + strconv.Itoa(int(w.value())) + " ack " + strconv.Itoa(int(w.ack())) + " credit " + strconv.Itoa(int(w.credit()))
}

// advance gives by how much the counter c is ahead of n, and false if it is behind.
func advance(c uint32, n uint32) (uint32, bool) {
	d := (c - n) % counterMod
	return d, d <= MaxOutstanding
}
