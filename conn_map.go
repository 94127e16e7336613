package rdma

import (
	"errors"
	"fmt"
	"math"
	"net"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/stream"
	"github.com/verbena-rdma/verbena/verbs"
)

// mapping is memory that the peer may write.
type mapping struct {
	mr     *verbs.MR // nil: the index is free
	offset int64
	asked  bool // Unmap was called: the peer is asked to give it back
	going  bool // and has not answered yet
}

// ErrNoMap is in the error of MapWrite if the peer offers nothing at that offset.
var ErrNoMap error = stream.ErrNoMap

// Map offers memory to the peer, which may write it with MapWrite under the offsets from
// offset on (riomap). The memory must be registered with ib.RemoteWrite in the domain that
// PD gives, and be smaller than 4 GiB. A negative offset lets the library choose one that is
// free; the offset is given back. The peer hears of it behind what was written before,
// however long that waits for its reader, and before what is written later. How many maps
// there may be at a time is the peer's choice (Config.Maps); then, and if the offsets overlap
// another map, the error wraps syscall.ENOBUFS or syscall.EINVAL.
//
// Map does not wait. The memory stays the caller's, who may read and write it at any time,
// at the risk of meeting the peer there, and keeps the MR open until Unmap or Close has
// returned. Nothing tells when the peer has written: send a message behind the data. Over
// TCP the errors of Map, MapWrite and Unmap wrap errors.ErrUnsupported.
func (c *Conn) Map(mr *verbs.MR, offset int64) (int64, error) {
	if !c.ok() {
		return 0, errInvalid
	}
	if c.tcp != nil {
		return 0, errNoMaps
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	offset, err := c.mapLocal(mr, offset)
	return offset, c.fail("map", err)
}

var errNoMaps = fmt.Errorf("rdma: TCP has no mapped memory: %w", errors.ErrUnsupported)

func (c *Conn) mapLocal(mr *verbs.MR, offset int64) (int64, error) {
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case c.over:
		return 0, c.endErr()
	case mr == nil || mr.PD() != c.hub.pd:
		return 0, fmt.Errorf("%w (use Conn.PD)", verbs.ErrPDMismatch)
	case mr.Access()&ib.RemoteWrite == 0:
		return 0, verbs.ErrAccess
	case offset > 1<<62:
		return 0, &errnoError{errno: syscall.EINVAL}
	case uint64(mr.Len()) > math.MaxUint32:
		return 0, &errnoError{errno: syscall.EINVAL, cause: errors.New("a map has less than 4 GiB")}
	}
	index, next := -1, int64(0)
	for i, m := range c.maps {
		if m.mr == nil {
			if index < 0 {
				index = i
			}
			continue
		}
		end := m.offset + int64(m.mr.Len())
		next = max(next, end)
		if offset >= 0 && offset < end && m.offset < offset+int64(mr.Len()) {
			return 0, &errnoError{errno: syscall.EINVAL, cause: errors.New("another map has these offsets")}
		}
	}
	if index < 0 {
		index = len(c.maps)
	}
	if offset < 0 {
		offset = next
	}
	r := mr.Remote(0, mr.Len())
	if err := c.e.MapLocal(index, uint64(offset), r.Addr, r.RKey, r.Len); err != nil {
		return 0, &errnoError{errno: syscall.ENOBUFS, cause: err}
	}
	if index == len(c.maps) {
		c.maps = append(c.maps, mapping{})
	}
	c.maps[index] = mapping{mr: mr, offset: offset}
	c.settle(nil)
	return offset, nil
}

// Unmap takes a map back. When it returns a peer that is a Verbena writes there no more. A
// C program may do so as long as the connection or the registration lives (its protocol
// has no word for it): close the MR, and a peer that still writes loses the connection.
//
// It waits for the answer of the peer's library, no longer than until the write deadline, and
// behind a Write that is in progress. If the deadline passes the memory is still mapped, and
// Unmap can be called again. After Close nobody writes there, whatever was mapped, and the
// error wraps net.ErrClosed; that of memory that is not mapped wraps syscall.EINVAL.
func (c *Conn) Unmap(mr *verbs.MR) error {
	if !c.ok() {
		return errInvalid
	}
	if c.tcp != nil {
		return errNoMaps
	}
	c.wrMu.Lock() // pause has one place for who waits for the peer to go on
	defer c.wrMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.fail("unmap", net.ErrClosed)
	}
	for i := range c.maps {
		if c.maps[i].mr == mr && mr != nil {
			return c.fail("unmap", c.unmap(i))
		}
	}
	return c.fail("unmap", &errnoError{errno: syscall.EINVAL, cause: errors.New("the memory is not mapped")})
}

func (c *Conn) unmap(i int) error {
	if !c.over && !c.maps[i].asked {
		if err := c.e.UnmapLocal(i); err != nil {
			return &errnoError{errno: syscall.EINVAL, cause: err}
		}
		c.maps[i].asked, c.maps[i].going = true, true
		c.settle(nil)
	}
	for c.maps[i].going && !c.over && !c.e.PeerClosed() { // who has closed writes no more, and gives no answer
		if err := c.limits(&c.wdl); err != nil {
			return err
		}
		c.pause(&c.wr)
	}
	c.maps[i] = mapping{}
	return nil
}

// unmapped takes the news of maps that are free again. mu is held.
func (c *Conn) unmapped() {
	for {
		i, ok := c.e.TakeUnmapped()
		if !ok {
			break
		}
		if i < len(c.maps) {
			c.maps[i].going = false
		}
	}
	if c.wr != nil {
		c.hub.wake(c.wr, nil)
	}
}

// MapWrite writes p to the memory that the peer has mapped at offset (riowrite), and waits
// until it is in this connection's memory, as Write does, and no longer than until the write
// deadline; p is the caller's again then. What Write sends later arrives later. If the peer
// has no map there, or it ends before p does, the error wraps ErrNoMap, and n says how much
// was taken. It does not allocate.
func (c *Conn) MapWrite(p []byte, offset int64) (n int, err error) {
	if !c.ok() {
		return 0, errInvalid
	}
	if c.tcp != nil {
		return 0, errNoMaps
	}
	c.wrMu.Lock()
	defer c.wrMu.Unlock()
	c.hub.glance()
	c.mu.Lock()
	defer c.mu.Unlock()
	for n < len(p) {
		if err := c.limits(&c.wdl); err != nil {
			return n, c.fail("write", err)
		}
		m, err := c.pushMap(p[n:], offset+int64(n))
		n += m
		if err == ErrWouldBlock {
			c.pause(&c.wr)
		} else if err != nil {
			return n, c.fail("write", err)
		}
	}
	return n, nil
}

// pushMap takes what fits of p. mu is held.
func (c *Conn) pushMap(p []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, ErrNoMap
	}
	if err := c.sendRoom(len(p)); err != nil {
		return 0, err
	}
	loc, err := c.e.MapRoom(uint64(offset))
	if err != nil {
		if errors.Is(err, stream.ErrNoMap) {
			return 0, err
		}
		return 0, ended(err)
	}
	if loc.Len == 0 {
		return 0, ErrWouldBlock
	}
	n := copy(c.mem.send.b[loc.Off:loc.Off+loc.Len], p)
	c.e.CommitMap(uint64(offset), n)
	c.stats.BytesWritten += uint64(n)
	c.wrote = now()
	c.settle(nil)
	return n, nil
}

// endErr gives why a connection that is over takes nothing more.
func (c *Conn) endErr() error {
	if err := c.e.Err(); err != nil {
		return ended(err)
	}
	return errPipe
}
