package cm

import (
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/verbs"
)

// Conn is a connected queue pair.
type Conn struct {
	id *ID
	c  <-chan struct{}
}

func newConn(id *ID) *Conn { return &Conn{id: id, c: id.ended()} }

// ID gives the id below, for what this floor does not have; its calls wait. It is nil
// for a nil Conn.
func (c *Conn) ID() *ID {
	if c == nil {
		return nil
	}
	return c.id
}

// QP gives the queue pair. It is moved and closed by the connection.
func (c *Conn) QP() *verbs.QP { return c.ID().QP() }

// Device gives the device of the queue pair.
func (c *Conn) Device() *verbs.Device { return c.ID().Device() }

// LocalAddr gives the address of this end.
func (c *Conn) LocalAddr() netip.AddrPort { return c.ID().LocalAddr() }

// RemoteAddr gives the address of the peer.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.ID().RemoteAddr() }

// Private gives what the peer sent with its request, or with its accept. IB and
// RoCE pad it with zeros, to 56 and 196 bytes: carry a length, or use a fixed format.
func (c *Conn) Private() []byte { return c.ID().Private() }

// Done is closed when the connection has ended, for whatever cause; Err, and the
// queue pair's Err, give it: io.EOF if the peer disconnected, net.ErrClosed after
// Close. The cause is set before the queue pair is failed, so before any flush can
// be polled.
func (c *Conn) Done() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.c
}

// Err gives why the connection ended, and nil while it stands; see Done.
func (c *Conn) Err() error {
	if c == nil {
		return syscall.EINVAL
	}
	return c.id.Err()
}

// Close disconnects and closes the queue pair (see verbs.QP.Close). It waits for
// the device, at most a second, and not for the peer. To let sends finish first:
// wait for their completions, then Close. It is idempotent.
func (c *Conn) Close() error {
	if c == nil {
		return opError(opClose, wrong("cm: the connection is nil"))
	}
	return c.id.Close()
}
