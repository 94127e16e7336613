package scripted

import (
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// QP is a queue pair. Its requests lie where verbs has written them until the test
// completes them.
type QP struct {
	object
	num    ib.QPN
	handle uint64
	typ    ib.QPType
	caps   driver.Caps
	sqAll  bool // SignalAll
	send   *CQ
	recv   *CQ
	srq    *SRQ
	attr   driver.QPAttr

	slots         []driver.SendSlot // a ring
	first, n      int               // outstanding ones
	rslots        []driver.RecvSlot
	rfirst, rn    int
	never, hold   bool
	auto          bool
	short         int // the next commit posts so many only; -1: all
	shortErr      error
	groups        []ib.GID
	modified      []ib.QPAttrMask
	refuseInError bool
}

var _ driver.QP = (*QP)(nil)

// CreateQP makes a queue pair in RESET. Sizes are rounded up as some devices do: one
// more SGE, 16 bytes of inline data at least.
func (pd *PD) CreateQP(c driver.QPConfig) (driver.QP, error) {
	q := &QP{handle: c.Handle, typ: c.Type, caps: c.Cap, sqAll: c.SignalAll, short: -1}
	q.send, _ = c.SendCQ.(*CQ)
	q.recv, _ = c.RecvCQ.(*CQ)
	if q.send == nil || q.recv == nil || q.send.ctx != pd.ctx || q.recv.ctx != pd.ctx {
		return nil, syscall.EINVAL
	}
	parents := []*object{&q.send.object, &q.recv.object}
	if c.SRQ != nil {
		q.srq = c.SRQ.(*SRQ)
		parents = append(parents, &q.srq.object)
	}
	if err := pd.made("create qp", "qp", &q.object, parents...); err != nil {
		return nil, err
	}
	q.caps.MaxSendSGE++
	q.caps.MaxInline = max(q.caps.MaxInline, 16)
	q.slots = make([]driver.SendSlot, q.caps.MaxSendWR)
	q.rslots = make([]driver.RecvSlot, q.caps.MaxRecvWR)
	for i := range q.slots {
		q.slots[i].SGL = make([]driver.SGE, 0, q.caps.MaxSendSGE)
		q.slots[i].Data = make([]byte, 0, q.caps.MaxInline)
	}
	for i := range q.rslots {
		q.rslots[i].SGL = make([]driver.SGE, 0, q.caps.MaxRecvSGE)
	}
	pd.p.mu.Lock()
	defer pd.p.mu.Unlock()
	pd.p.qpn++
	q.num = pd.p.qpn
	pd.ctx.qps = append(pd.ctx.qps, q)
	return q, nil
}

// Num gives the number.
func (q *QP) Num() ib.QPN { return q.num }

// Handle gives the handle that verbs chose.
func (q *QP) Handle() uint64 { return q.handle }

// Caps gives the sizes.
func (q *QP) Caps() driver.Caps { return q.caps }

// NeverFlush lets the device forget to flush, now and for ever.
func (q *QP) NeverFlush() { q.script(func() { q.never = true }) }

// HoldFlush lets the device flush only when Flush is called.
func (q *QP) HoldFlush() { q.script(func() { q.hold = true }) }

// Auto lets send requests complete with success when they are posted.
func (q *QP) Auto() { q.script(func() { q.auto = true }) }

// RefuseInError lets posts fail in the error state, as some devices do.
func (q *QP) RefuseInError() { q.script(func() { q.refuseInError = true }) }

// ShortPost lets the next commit post n requests only and give err.
func (q *QP) ShortPost(n int, err error) {
	q.script(func() { q.short, q.shortErr = n, err })
}

func (q *QP) script(f func()) {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	f()
}

// Attr gives the attributes, and Modified the masks of all Modify calls that succeeded.
func (q *QP) Attr() driver.QPAttr {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	return q.attr
}

// Modified: see Attr.
func (q *QP) Modified() []ib.QPAttrMask {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	return slices.Clone(q.modified)
}

// Sends and Recvs give copies of the requests that are outstanding.
func (q *QP) Sends() []driver.SendSlot {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	list := make([]driver.SendSlot, q.n)
	for i := range list {
		s := q.slots[(q.first+i)%len(q.slots)]
		s.SGL, s.Data = slices.Clone(s.SGL), slices.Clone(s.Data)
		list[i] = s
	}
	return list
}

// Recvs: see Sends.
func (q *QP) Recvs() []driver.RecvSlot {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	list := make([]driver.RecvSlot, q.rn)
	for i := range list {
		s := q.rslots[(q.rfirst+i)%len(q.rslots)]
		s.SGL = slices.Clone(s.SGL)
		list[i] = s
	}
	return list
}

// CompleteSend completes the n oldest send requests with a status. Those that succeed
// unsignaled leave no trace. A failure moves the queue pair to the error state and
// flushes, as the standard has it.
func (q *QP) CompleteSend(n int, st ib.Status) {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.completeSend(n, st)
	if st != ib.StatusSuccess {
		q.attr.State = ib.StateError
		q.flush()
	}
}

func (q *QP) completeSend(n int, st ib.Status) {
	for ; n > 0 && q.n > 0; n-- {
		s := &q.slots[q.first]
		q.first = (q.first + 1) % len(q.slots)
		q.n--
		if st == ib.StatusSuccess && s.Flags&ib.Signaled == 0 && !q.sqAll {
			continue
		}
		w := driver.WC{ID: s.ID, QPN: q.num, Status: st, Opcode: opcodes[s.Opcode]}
		if st != ib.StatusSuccess {
			w = spoil(w)
		}
		q.send.push(w, false)
	}
}

// spoil fills in what is not valid in a failed completion.
func spoil(w driver.WC) driver.WC {
	return driver.WC{ID: w.ID, QPN: w.QPN, Status: w.Status, VendorErr: 0x51,
		ByteLen: 0xDEAD, Imm: 0xDEAD, Opcode: 0x55, Flags: 0xFF, SrcQPN: 0xDEAD, SL: 9, PathBits: 9, SLID: 9, PKeyIndex: 9}
}

var opcodes = [16]ib.WCOpcode{
	ib.OpWrite: ib.WCWrite, ib.OpWriteImm: ib.WCWrite, ib.OpSend: ib.WCSend, ib.OpSendImm: ib.WCSend, ib.OpRead: ib.WCRead,
	ib.OpCompareSwap: ib.WCCompareSwap, ib.OpFetchAdd: ib.WCFetchAdd, ib.OpLocalInv: ib.WCLocalInv, ib.OpSendInv: ib.WCSend,
	ib.OpBindMW: ib.WCBindMW,
}

// CompleteRecv completes the n oldest receives as w says; ID and QPN are filled in. With
// an SRQ it takes them from there. solicited: the sender asked for an event.
func (q *QP) CompleteRecv(n int, w driver.WC, solicited bool) {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	w.QPN = q.num
	for ; n > 0; n-- {
		if q.srq != nil {
			id, ok := q.srq.pop()
			if !ok {
				return
			}
			w.ID = id
		} else {
			if q.rn == 0 {
				return
			}
			w.ID = q.rslots[q.rfirst].ID
			q.rfirst = (q.rfirst + 1) % len(q.rslots)
			q.rn--
		}
		out := w
		if w.Status != ib.StatusSuccess {
			out = spoil(w)
		} else if out.Opcode == 0 {
			out.Opcode = ib.WCRecv
		}
		q.recv.push(out, solicited)
	}
	if w.Status != ib.StatusSuccess && q.typ == ib.RC {
		q.attr.State = ib.StateError
		q.flush()
	}
}

// Received gives a completion of a receive, for CompleteRecv.
func Received(n int) driver.WC {
	return driver.WC{Status: ib.StatusSuccess, Opcode: ib.WCRecv, ByteLen: uint32(n)}
}

// Flush completes everything that is outstanding, flushed.
func (q *QP) Flush() {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.hold = false
	q.flush()
}

// flush is Flush with p.mu held, unless the device does not.
func (q *QP) flush() {
	if q.never || q.hold {
		return
	}
	q.completeSend(q.n, ib.StatusWRFlush)
	for ; q.rn > 0; q.rn-- {
		q.recv.push(spoil(driver.WC{ID: q.rslots[q.rfirst].ID, QPN: q.num, Status: ib.StatusWRFlush}), false)
		q.rfirst = (q.rfirst + 1) % len(q.rslots)
	}
}

// Inject adds a completion to the queue of sends, or of receives, as it is.
func (q *QP) Inject(w driver.WC, recv bool) {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	c := q.send
	if recv {
		c = q.recv
	}
	c.push(w, false)
}

// Event raises an asynchronous event about the queue pair.
func (q *QP) Event(t ib.EventType) {
	q.ctx.PostAsync(driver.AsyncEvent{Type: t, Handle: q.handle, Port: 1})
}

// SendSlots gives the free places that follow one another.
func (q *QP) SendSlots() []driver.SendSlot {
	q.look("send slots")
	defer q.end()
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	size := len(q.slots)
	if q.n == size {
		return nil
	}
	i := (q.first + q.n) % size
	return q.slots[i:min(i+size-q.n, size)]
}

// RecvSlots: see SendSlots.
func (q *QP) RecvSlots() []driver.RecvSlot {
	q.look("recv slots")
	defer q.end()
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	size := len(q.rslots)
	if q.rn == size {
		return nil
	}
	i := (q.rfirst + q.rn) % size
	return q.rslots[i:min(i+size-q.rn, size)]
}

// CommitSend posts.
func (q *QP) CommitSend(n int) (int, error) {
	err := q.begin("post send")
	defer q.end()
	if err != nil {
		return 0, err
	}
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	if q.n+n > len(q.slots) {
		q.p.violateLocked("qp: commit of %d sends, %d fit", n, len(q.slots)-q.n)
		return 0, syscall.ENOMEM
	}
	if s := q.attr.State; s < ib.StateRTS || s == ib.StateError && q.refuseInError {
		return 0, syscall.EINVAL
	}
	for i := range n {
		s := &q.slots[(q.first+q.n+i)%len(q.slots)]
		if len(s.SGL) > q.caps.MaxSendSGE || len(s.Data) > q.caps.MaxInline {
			q.p.violateLocked("qp: request with %d pieces and %d bytes of data", len(s.SGL), len(s.Data))
		}
	}
	n, err = q.shorten(n)
	q.n += n
	switch {
	case q.attr.State == ib.StateError:
		q.flush()
	case q.auto:
		q.completeSend(q.n, ib.StatusSuccess)
	}
	return n, err
}

// shorten applies ShortPost.
func (q *QP) shorten(n int) (int, error) {
	if q.short < 0 || q.short >= n {
		return n, nil
	}
	n, err := q.short, q.shortErr
	q.short = -1
	return n, err
}

// CommitRecv posts.
func (q *QP) CommitRecv(n int) (int, error) {
	err := q.begin("post recv")
	defer q.end()
	if err != nil {
		return 0, err
	}
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	if q.rn+n > len(q.rslots) {
		q.p.violateLocked("qp: commit of %d receives, %d fit", n, len(q.rslots)-q.rn)
		return 0, syscall.ENOMEM
	}
	if s := q.attr.State; s == ib.StateReset || s == ib.StateError && q.refuseInError {
		return 0, syscall.EINVAL
	}
	n, err = q.shorten(n)
	q.rn += n
	if q.attr.State == ib.StateError {
		q.flush()
	}
	return n, err
}

// Modify changes attributes; it checks nothing.
func (q *QP) Modify(a *driver.QPAttr, m ib.QPAttrMask) error {
	err := q.begin("modify qp")
	defer q.end()
	if err != nil {
		return err
	}
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	state := q.attr.State
	if m&ib.AttrState != 0 {
		state = a.State
	}
	merge(&q.attr, a, m)
	q.attr.State = state
	q.modified = append(q.modified, m)
	switch {
	case m&ib.AttrState == 0:
	case state == ib.StateReset:
		q.first, q.n, q.rfirst, q.rn = 0, 0, 0, 0
	case state == ib.StateError:
		q.flush()
	}
	return nil
}

// SetState changes the state behind verbs' back.
func (q *QP) SetState(s ib.QPState) { q.script(func() { q.attr.State = s }) }

// Query gives all attributes.
func (q *QP) Query(ib.QPAttrMask) (driver.QPAttr, error) {
	err := q.begin("query qp")
	defer q.end()
	if err != nil {
		return driver.QPAttr{}, err
	}
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	a := q.attr
	a.Cap = q.caps
	return a, nil
}

// Attach joins a group.
func (q *QP) Attach(g ib.GID, _ ib.LID) error {
	err := q.begin("attach")
	defer q.end()
	if err != nil {
		return err
	}
	if !slices.Contains(q.groups, g) {
		q.groups = append(q.groups, g)
	}
	return nil
}

// Detach leaves a group.
func (q *QP) Detach(g ib.GID, _ ib.LID) error {
	err := q.begin("detach")
	defer q.end()
	if err != nil {
		return err
	}
	i := slices.Index(q.groups, g)
	if i < 0 {
		return syscall.EINVAL
	}
	q.groups = slices.Delete(q.groups, i, i+1)
	return nil
}

// Close destroys the queue pair. Its completions stay in the CQs, as with Linux
// Soft-RoCE. One that is attached to a group cannot be destroyed.
func (q *QP) Close() error {
	if len(q.groups) > 0 {
		q.p.violate("qp: closed while attached to %d groups", len(q.groups))
		return syscall.EBUSY
	}
	return q.close()
}

// SRQ is a shared receive queue.
type SRQ struct {
	object
	handle     uint64
	slots      []driver.RecvSlot
	first, n   int
	limit      int
	late       bool
	maxWR, sge int
}

var _ driver.SRQ = (*SRQ)(nil)

// CreateSRQ makes one.
func (pd *PD) CreateSRQ(c driver.SRQConfig) (driver.SRQ, error) {
	s := &SRQ{handle: c.Handle, limit: c.Limit, maxWR: c.MaxWR, sge: c.MaxSGE}
	if err := pd.made("create srq", "srq", &s.object); err != nil {
		return nil, err
	}
	s.slots = make([]driver.RecvSlot, c.MaxWR)
	for i := range s.slots {
		s.slots[i].SGL = make([]driver.SGE, 0, c.MaxSGE)
	}
	pd.p.mu.Lock()
	defer pd.p.mu.Unlock()
	pd.ctx.srqs = append(pd.ctx.srqs, s)
	return s, nil
}

// pop takes the oldest receive. p.mu is held.
func (s *SRQ) pop() (id uint64, ok bool) {
	if s.n == 0 {
		return 0, false
	}
	id = s.slots[s.first].ID
	s.first = (s.first + 1) % len(s.slots)
	s.n--
	s.check()
	return id, true
}

// LateLimit lets the device look at its limit only when a receive is taken, as Linux Soft-RoCE does.
func (s *SRQ) LateLimit() {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.late = true
}

// check looks at the limit. p.mu is held.
func (s *SRQ) check() {
	if s.limit > 0 && s.n < s.limit {
		s.limit = 0
		s.ctx.async.post(driver.AsyncEvent{Type: ib.EventSRQLimitReached, Handle: s.handle, Port: 1})
	}
}

// RecvSlots gives free places.
func (s *SRQ) RecvSlots() []driver.RecvSlot {
	s.look("srq slots")
	defer s.end()
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	size := len(s.slots)
	if s.n == size {
		return nil
	}
	i := (s.first + s.n) % size
	return s.slots[i:min(i+size-s.n, size)]
}

// CommitRecv posts.
func (s *SRQ) CommitRecv(n int) (int, error) {
	err := s.begin("post srq")
	defer s.end()
	if err != nil {
		return 0, err
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.n+n > len(s.slots) {
		s.p.violateLocked("srq: commit of %d receives, %d fit", n, len(s.slots)-s.n)
		return 0, syscall.ENOMEM
	}
	s.n += n
	return n, nil
}

// Modify changes the limit.
func (s *SRQ) Modify(maxWR, limit int) error {
	err := s.begin("modify srq")
	defer s.end()
	if err != nil {
		return err
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if maxWR >= 0 {
		return syscall.EOPNOTSUPP
	}
	if limit >= 0 {
		if s.limit = limit; !s.late {
			s.check()
		}
	}
	return nil
}

// Query gives size and limit.
func (s *SRQ) Query() (maxWR, limit int, err error) {
	err = s.begin("query srq")
	defer s.end()
	if err != nil {
		return 0, 0, err
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.maxWR, s.limit, nil
}

// Close destroys it.
func (s *SRQ) Close() error { return s.close() }

// Numbers gives the numbers of the receives that are outstanding.
func (s *SRQ) Numbers() []uint64 {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	ids := make([]uint64, s.n)
	for i := range ids {
		ids[i] = s.slots[(s.first+i)%len(s.slots)].ID
	}
	return ids
}
