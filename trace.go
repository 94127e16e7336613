package rdma

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// Trace has functions that are called when something happens, as in net/http/httptrace.
// Nil functions are skipped. They are called from whatever goroutine finds out, now and
// then from several at once; they must neither block nor call methods of the Conn that
// may block.
type Trace struct {
	// Resolved: a dialer knows the device towards an address, or that there is none.
	Resolved func(addr netip.AddrPort, device string, d time.Duration, err error)
	// Connected: a dialer has a connection (c), or an address of its target failed (err).
	Connected func(c *Conn, d time.Duration, err error)
	// Accepted: a listener has a connection, which Accept will give.
	Accepted func(c *Conn)
	// Refused: a listener did not take a request, or its handshake failed. If not even the
	// request could be had, as with too many open files, peer is the zero AddrPort; the
	// listener tries again after a while.
	Refused func(peer netip.AddrPort, err error)
	// FellBack: TCP takes the place of RDMA.
	FellBack func(address string, why error)
	// CreditStall: a Write or WriteBuffers had to wait for the peer to read, and is done; d is
	// how long ago that began.
	CreditStall func(c *Conn, d time.Duration)
	// Async: a device told of something: a port that goes down, an address that changes, a
	// queue that breaks. It is called once for each event of a device that carries a
	// connection of a Config with this Trace, or has brought its listener a request; of the
	// events of queue pairs, for those of these connections. The library then reads the
	// events of that device, so that a program that wants them beside it takes
	// verbs.AsyncEvents.Observe; without Async it reads none.
	Async func(ev verbs.AsyncEvent)
	// Closed: the connection is over, by Close (nil) or by itself, with the cause that Read and
	// Write give; over TCP by Close only.
	Closed func(c *Conn, cause error)
}
