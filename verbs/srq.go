package verbs

import (
	"fmt"
	"sync"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// SRQConfig; zero MaxWR: 256, MaxSGE: 1.
type SRQConfig struct {
	MaxWR, MaxSGE int
	Limit         int // see SetLimit; it counts from the first receive that is taken
	UserData      any
}

const (
	defaultSRQWR = 256
	opCreateSRQ  = "create srq"
)

// SRQ is a receive queue that queue pairs share (struct ibv_srq). A receive that a queue
// pair has taken completes in the CQ of that queue pair. If the queue pair is closed
// before the completion was polled, it is not given any more: Drain the queue pair first
// if the receive's memory matters.
type SRQ struct {
	object
	pd     *PD
	d      driver.SRQ
	index  uint32
	handle uint64
	max    int
	user   any

	mu sync.Mutex // one call of d at a time

	emu   sync.Mutex // the entries, as completions of all queue pairs take them
	ents  []srqEntry
	first int // of the free ones; -1: none
	n     int // outstanding
	limit srqLimit
}

// srqEntry remembers a receive. Its place and generation make the number that the
// provider gets.
type srqEntry struct {
	id   uint64
	gen  uint32 // 20 bits
	used bool
	next int
}

// srqPlaceBits of the number are the place, as many again the generation.
const (
	srqPlaceBits = 20
	srqPlaceMask = 1<<srqPlaceBits - 1
	srqGenMask   = srqPlaceMask
)

// CreateSRQ makes a shared receive queue (ibv_create_srq). Devices without them give
// errors.ErrUnsupported.
func (pd *PD) CreateSRQ(cfg SRQConfig) (*SRQ, error) {
	if pd == nil || pd.name == nil {
		return nil, opError(opCreateSRQ, nil, "", errNil)
	}
	d := pd.dev
	setDefault(&cfg.MaxWR, defaultSRQWR)
	setDefault(&cfg.MaxSGE, defaultSGE)
	object := fmt.Sprintf("SRQ of %d", cfg.MaxWR)
	most := 1 << srqPlaceBits
	if m := d.limits.MaxSRQWR; m > 0 {
		most = min(most, m)
	}
	switch {
	case cfg.MaxWR < 1 || cfg.MaxWR > most:
		return nil, invalid(opCreateSRQ, d, object, "MaxWR must be in 1..%d", most)
	case cfg.MaxSGE < 1 || d.limits.MaxSRQSGE > 0 && cfg.MaxSGE > d.limits.MaxSRQSGE:
		return nil, invalid(opCreateSRQ, d, object, "MaxSGE must be in 1..%d", d.limits.MaxSRQSGE)
	case cfg.Limit < 0 || cfg.Limit > cfg.MaxWR:
		return nil, invalid(opCreateSRQ, d, object, "Limit must be in 0..%d", cfg.MaxWR)
	}
	s := &SRQ{pd: pd, max: cfg.MaxWR, user: cfg.UserData, ents: make([]srqEntry, cfg.MaxWR), limit: srqLimit{armed: cfg.Limit}}
	var ok bool
	var gen uint64
	if s.index, s.handle, gen, ok = d.srqs.reserve(); !ok {
		return nil, invalid(opCreateSRQ, d, object, "there are %d", maxIndex)
	}
	for i := range s.ents {
		s.ents[i] = srqEntry{gen: uint32(gen), next: i + 1}
	}
	s.ents[cfg.MaxWR-1].next = -1
	err := pd.child(opCreateSRQ, object, func(p driver.PD) (err error) {
		s.d, err = p.CreateSRQ(driver.SRQConfig{Handle: s.handle, MaxWR: cfg.MaxWR, MaxSGE: cfg.MaxSGE, Limit: cfg.Limit})
		return err
	})
	if err != nil {
		d.srqs.release(s.index, gen)
		return nil, err
	}
	s.begin(d, s.describe, s.destroy)
	d.srqs.publish(s.index, s)
	return s, nil
}

func (s *SRQ) describe() string { return fmt.Sprintf("SRQ %d of %d", s.index, s.max) }

func (s *SRQ) destroy() error {
	err := opError("close srq", s.dev, s.describe(), s.d.Close())
	// Numbers of this SRQ that come late must fit none of the next of its index.
	last := uint32(0)
	for i := range s.ents {
		last = max(last, s.ents[i].gen)
	}
	s.dev.srqs.release(s.index, uint64(last+1)&srqGenMask)
	if e := s.pd.drop(); err == nil {
		err = e
	}
	return err
}

// Close lets the queue go, as soon as no queue pair uses it (ibv_destroy_srq). The memory
// of its receives is the caller's again after the last queue pair was closed.
func (s *SRQ) Close() error {
	if s == nil || s.name == nil {
		return opError("close srq", nil, "", errNil)
	}
	return s.close(nil, nil)
}

// UserData gives what SRQConfig had.
func (s *SRQ) UserData() any {
	if s == nil {
		return nil
	}
	return s.user
}

// PostRecv posts a receive request (ibv_post_srq_recv); see QP.PostRecv.
func (s *SRQ) PostRecv(wr RecvWR) error {
	one := [1]RecvWR{wr}
	_, err := s.PostRecvList(one[:])
	return err
}

// PostRecvList posts receive requests in order; see QP.PostSendList.
func (s *SRQ) PostRecvList(wrs []RecvWR) (n int, err error) {
	if s == nil || s.d == nil {
		return 0, errNil
	}
	s.mu.Lock()
	n, err = s.post(wrs)
	s.mu.Unlock()
	if err == ErrDeviceGone {
		s.dev.notice(err)
	}
	return n, err
}

func (s *SRQ) post(wrs []RecvWR) (n int, err error) {
	for n < len(wrs) {
		if s.closed() {
			return n, ErrClosed
		}
		slots := s.d.RecvSlots()
		k := min(len(slots), len(wrs)-n, postBatch)
		if k == 0 {
			return n, ErrQueueFull
		}
		var numbers [postBatch]uint64
		var bad error
		for i := range k {
			wr := &wrs[n+i]
			if bad = writeRecv(&slots[i], wr, s.pd); bad == nil {
				if numbers[i], bad = s.put(wr.ID); bad == nil {
					slots[i].ID = numbers[i]
					continue
				}
			}
			k = i
			break
		}
		if k > 0 {
			posted, err := s.d.CommitRecv(k)
			for _, id := range numbers[min(posted, k):k] {
				s.take(id)
			}
			if posted < k {
				return n + posted, postErr(err)
			}
			n += k
		}
		if bad != nil {
			return n, bad
		}
	}
	return n, nil
}

// put remembers a receive and gives the number for the provider.
func (s *SRQ) put(id uint64) (uint64, error) {
	s.emu.Lock()
	defer s.emu.Unlock()
	i := s.first
	if i < 0 {
		return 0, ErrQueueFull
	}
	e := &s.ents[i]
	s.first = e.next
	e.id, e.used = id, true
	e.gen = (e.gen + 1) & srqGenMask
	s.n++
	return requestID(kindSRQ, s.index) | uint64(e.gen)<<srqPlaceBits | uint64(i), nil
}

// take gives the caller's id of a receive that is complete; false: there is none.
func (s *SRQ) take(number uint64) (id uint64, ok bool) {
	i := int(number & srqPlaceMask)
	gen := uint32(number>>srqPlaceBits) & srqGenMask
	s.emu.Lock()
	if i >= len(s.ents) || !s.ents[i].used || s.ents[i].gen != gen {
		s.emu.Unlock()
		return 0, false
	}
	e := &s.ents[i]
	id = e.id
	e.used = false
	e.next, s.first = s.first, i
	s.n--
	tell := s.n == 0 && s.limit.below(0)
	s.emu.Unlock()
	if tell { // a device that is late would have no receive left to be late with
		s.dev.async.tell(s.handle)
	}
	return id, true
}

// Room gives how many more receives fit.
func (s *SRQ) Room() int {
	if s == nil || s.d == nil {
		return 0
	}
	s.emu.Lock()
	defer s.emu.Unlock()
	return s.max - s.n
}

// finishShared is CQ.finish for a receive of an SRQ. cq.mu is held.
func (cq *CQ) finishShared(e *driver.WC, w *WC, index uint32) bool {
	if e.ID>>kindShift != kindSRQ {
		return false
	}
	s := cq.dev.srqs.get(index)
	if s == nil {
		return false
	}
	id, ok := s.take(e.ID)
	if !ok {
		return false
	}
	qp := cq.dev.nums.get(e.QPN)
	if qp == nil || qp.srq != s || qp.recvCQ != cq || qp.silent {
		return false
	}
	ent := entry{id: id, op: ib.WCRecv}
	fill(w, e, qp, ent)
	if e.Status != ib.StatusSuccess {
		qp.failedBy(e, ent)
	}
	return true
}

// control runs a call of the provider's queue.
func (s *SRQ) control(op string, f func() error) error {
	if s == nil {
		return opError(op, nil, "", errNil)
	}
	return s.locked(op, &s.mu, f)
}
