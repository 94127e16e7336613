package mem

import "github.com/verbena-rdma/verbena/ib"

// Window is a memory window of type 2B: a key for the peer of one queue pair, that is bound
// to a piece of a region and invalidated again, any number of times (IBTA Vol 1 §10.6.7). It
// has a family of 256 keys that differ in the lowest byte; the owner chooses the next at
// each bind. As the regions of a Table its changes need the device's lock.
type Window struct {
	family uint32  // the upper 24 bits of its keys
	key    ib.RKey // of the last bind
	domain Domain
	bound  *Region // nil before the first bind
}

// RKey gives the key of the last bind, or the one that the window was made with.
func (w *Window) RKey() ib.RKey { return w.key }

// NewWindow makes a window in a protection domain. Its key is good for nothing yet. Window
// and region belong to the table until RemoveWindow.
func (t *Table) NewWindow(d Domain) *Window {
	f := t.rand() >> 8
	for !t.freeFamily(f) {
		f = (f + 1) & 0xFFFFFF
	}
	w := &Window{family: f, key: ib.RKey(f << 8), domain: d.domain()}
	if t.windows == nil {
		t.windows = map[uint32]*Window{}
	}
	t.windows[f] = w
	return w
}

// freeFamily reports whether none of 256 keys is in use.
func (t *Table) freeFamily(f uint32) bool {
	if f == 0 || t.windows[f] != nil { // 0 is never a key
		return false
	}
	for low := range uint32(256) {
		if t.find(f<<8|low) != nil {
			return false
		}
	}
	return true
}

// Bind is what a bind asks for: the peer of the queue pair in d (Domain.QP) gets the rights
// to n bytes at addr of the region with the key lkey, by the key rkey.
type Bind struct {
	Domain Domain
	LKey   ib.LKey
	RKey   ib.RKey
	Addr   uint64
	Len    int
	Rights ib.Access // remote rights, and ib.ZeroBased
}

// Bind binds a window. It fails, and nothing changes, if the window is bound already, the
// key is not one of its family, or the region does not allow it.
func (t *Table) Bind(w *Window, b Bind) Fault {
	r := t.find(uint32(b.LKey))
	switch {
	case r == nil || r.parent != nil:
		return NoKey
	case r.domain != b.Domain.domain() || w.domain != r.domain:
		return NoDomain
	case b.Rights&^(ib.RemoteAny|ib.ZeroBased) != 0 || r.access&ib.MWBind == 0,
		b.Rights&(ib.RemoteWrite|ib.RemoteAtomic) != 0 && r.access&ib.LocalWrite == 0:
		return NoRight
	case w.bound != nil && w.bound.state.Load()&(removed|revoked) == 0, uint32(b.RKey)>>8 != w.family:
		return NoInvalid
	}
	off := b.Addr - r.iova
	if b.Len <= 0 || b.Addr < r.iova || off > uint64(len(r.p)) || uint64(b.Len) > uint64(len(r.p))-off {
		return NoBounds
	}
	iova := b.Addr
	if b.Rights&ib.ZeroBased != 0 {
		iova = 0
	}
	p := r.p[off : off+uint64(b.Len)]
	if b.Rights&ib.RemoteAtomic != 0 && !congruent(p, iova) {
		return NoAtomic
	}
	if w.bound != nil {
		t.Remove(w.bound)
	}
	w.key = b.RKey
	w.bound = &Region{
		key: uint32(b.RKey), domain: b.Domain, mask: allOfDomain, access: b.Rights&^ib.ZeroBased | ib.MWBind,
		iova: iova, p: p, parent: r,
	}
	t.insert(w.bound)
	return OK
}

// RemoveWindow frees a window and makes its key void. Twice does nothing.
func (t *Table) RemoveWindow(w *Window) {
	if w.bound != nil {
		t.Remove(w.bound)
	}
	if t.windows[w.family] == w {
		delete(t.windows, w.family)
	}
}

// Unbind takes the rights of all windows away that are bound to a queue pair, which is no
// more: so the next one of its number does not inherit them.
func (t *Table) Unbind(d Domain) {
	for _, w := range t.windows {
		if w.bound != nil && w.bound.domain == d {
			w.bound.state.Or(revoked)
		}
	}
}
