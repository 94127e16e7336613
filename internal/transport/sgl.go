package transport

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// cursor remembers where in a scatter/gather list the last copy ended, so that the next
// one, which usually follows it, need not walk from the start.
type cursor struct {
	base uint32 // bytes of the elements before i
	i    int
}

// listLen gives the bytes that a list names.
func listLen(l []driver.SGE) (n uint64) {
	for i := range l {
		n += uint64(l[i].Len)
	}
	return n
}

// checkList reports the first element that could not be used now. Elements of no bytes
// are not looked at (C-099).
func (q *QP) checkList(l []driver.SGE, need ib.Access) mem.Fault {
	for i := range l {
		if e := &l[i]; e.Len != 0 {
			if f := q.cfg.Memory.Check(uint32(e.LKey), q.cfg.Domain, e.Addr, int(e.Len), need); f != mem.OK {
				return f
			}
		}
	}
	return mem.OK
}

// gather appends n bytes of the message that l names, from off on. The range is inside
// the message.
func (q *QP) gather(b []byte, l []driver.SGE, c *cursor, off, n uint32) ([]byte, mem.Fault) {
	if off < c.base {
		*c = cursor{}
	}
	for n > 0 {
		e := &l[c.i]
		o := off - c.base
		if o >= e.Len {
			c.base += e.Len
			c.i++
			continue
		}
		m := min(n, e.Len-o)
		r, p, f := q.cfg.Memory.Acquire(uint32(e.LKey), q.cfg.Domain, e.Addr+uint64(o), int(m), 0)
		if f != mem.OK {
			return b, f
		}
		b = append(b, p...)
		r.Release()
		off += m
		n -= m
	}
	return b, mem.OK
}

// scatter copies p to the place off of the message that l names. The caller has checked
// that it is inside.
func (q *QP) scatter(l []driver.SGE, c *cursor, off uint32, p []byte) mem.Fault {
	if off < c.base {
		*c = cursor{}
	}
	for len(p) > 0 {
		e := &l[c.i]
		o := off - c.base
		if o >= e.Len {
			c.base += e.Len
			c.i++
			continue
		}
		m := min(len(p), int(e.Len-o))
		r, dst, f := q.cfg.Memory.Acquire(uint32(e.LKey), q.cfg.Domain, e.Addr+uint64(o), m, ib.LocalWrite)
		if f != mem.OK {
			return f
		}
		copy(dst, p[:m])
		r.Release()
		off += uint32(m)
		p = p[m:]
	}
	return mem.OK
}
