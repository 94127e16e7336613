package rdmatest

import (
	"net/netip"
	"slices"
	"time"
)

// Rule says what happens to some datagrams. Its zero value matches every datagram
// and does nothing but count.
//
// Rules act in the order in which they were added, each on what the earlier ones
// left: delays and copies add up, and a drop is final.
type Rule struct {
	From, To netip.Addr          // zero: any
	Opcodes  []uint8             // of the base transport header; nil: any
	CM       uint16              // message of the connection manager; 0: any datagram
	Match    func(Datagram) bool // nil: every one; must not call the fabric

	// Nth is the first match that counts, from 1 on; zero: all count. Count is the
	// number of matches from there on: zero with Nth means one, negative all.
	Nth, Count int
	Chance     float64 // that a match counts; zero: always

	Drop      bool
	Duplicate int           // copies, besides the datagram itself
	Delay     time.Duration // constant delays keep the order
	Jitter    time.Duration // more delay, at random up to this
	Behind    int           // that many others of the same way go first, or 1 ms passes; of a duplicated datagram, the copies wait
	Hold      bool          // until Filter.Release
	Flip      int           // turns over bit Flip-1; negative: one at random
	Mark      bool          // congestion experienced, if the sender allows marks
	Bleach    bool          // clears the two ECN bits

	Replace func(Datagram) []byte // gives another payload; must not call the fabric
	See     func(Datagram)        // must not call the fabric
}

// Filter is a rule at work.
type Filter struct {
	f       *Fabric
	r       Rule
	matches int
	hits    int
	held    []*datagram
}

// behindFor is the longest time for which a datagram waits for others to pass.
const behindFor = time.Millisecond

// Rule adds a rule.
func (f *Fabric) Rule(r Rule) *Filter {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &Filter{f: f, r: r}
	f.filters = append(slices.Clip(f.filters), w)
	return w
}

// Hits gives the number of datagrams on which the rule acted.
func (w *Filter) Hits() int {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	return w.hits
}

// Held gives the number of datagrams that wait for Release.
func (w *Filter) Held() int {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	return len(w.held)
}

// Release delivers what is held, in order, and goes on holding what comes later.
func (w *Filter) Release() { w.release(false) }

// ReleaseReversed is Release, the latest first.
func (w *Filter) ReleaseReversed() { w.release(true) }

func (w *Filter) release(reversed bool) {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	held := w.held
	w.held = nil
	if reversed {
		slices.Reverse(held)
	}
	for _, d := range held {
		w.f.deliver(d, true)
	}
}

// Remove ends the rule; what it holds is lost.
func (w *Filter) Remove() {
	f := w.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := slices.Index(f.filters, w); i >= 0 {
		f.filters = slices.Delete(slices.Clone(f.filters), i, i+1)
	}
	for _, d := range w.held {
		d.free()
	}
	w.held = nil
}

// verdict is what the rules decided for a datagram.
type verdict struct {
	d      *datagram
	drop   bool
	copies int
	delay  time.Duration
	behind int
	hold   *Filter
}

// apply adds a rule to the verdict.
func (w *Filter) apply(v *verdict) {
	r := &w.r
	if v.drop || !w.matchesAddrs(v.d) {
		return
	}
	view := v.d.view()
	if r.Opcodes != nil && !slices.Contains(r.Opcodes, view.Opcode) ||
		r.CM != 0 && r.CM != view.CM ||
		r.Match != nil && !r.Match(view) {
		return
	}
	w.matches++
	if !w.counts() || r.Chance > 0 && w.f.rand.Float64() >= r.Chance {
		return
	}
	w.hits++
	if r.See != nil {
		r.See(view)
	}
	w.alter(v.d, view)
	v.drop = r.Drop
	v.copies += r.Duplicate
	v.delay += r.Delay
	if r.Jitter > 0 {
		v.delay += time.Duration(w.f.rand.Int64N(int64(r.Jitter)))
	}
	v.behind = max(v.behind, r.Behind)
	if r.Hold {
		v.hold = w
	}
}

func (w *Filter) matchesAddrs(d *datagram) bool {
	r := &w.r
	return (!r.From.IsValid() || r.From == d.from.Addr()) && (!r.To.IsValid() || r.To == d.to.Addr())
}

// counts reports whether the match is one of those that Nth and Count name.
func (w *Filter) counts() bool {
	r := &w.r
	first, count := r.Nth, r.Count
	if first == 0 {
		first = 1
		if count == 0 {
			count = -1
		}
	}
	if count == 0 {
		count = 1
	}
	return w.matches >= first && (count < 0 || w.matches < first+count)
}

// alter changes the datagram itself.
func (w *Filter) alter(d *datagram, view Datagram) {
	r := &w.r
	const ecn, ce = 3, 3
	if r.Mark && d.tos&ecn != 0 {
		d.tos |= ce
	}
	if r.Bleach {
		d.tos &^= ecn
	}
	if r.Replace != nil {
		d.b = append(d.b[:0], r.Replace(view)...)
		d.altered = true
	}
	if r.Flip != 0 && len(d.b) > 0 {
		bit := r.Flip - 1
		if bit < 0 {
			bit = w.f.rand.IntN(8 * len(d.b))
		}
		if bit < 8*len(d.b) {
			d.b[bit/8] ^= 1 << (bit % 8)
			d.altered = true
		}
	}
}

// ---- the usual faults

// Loss loses datagrams from one host to another with probability p. Zero addresses
// mean any, here and below.
func (f *Fabric) Loss(from, to netip.Addr, p float64) *Filter {
	if p <= 0 {
		return f.Rule(Rule{From: from, To: to})
	}
	return f.Rule(Rule{From: from, To: to, Chance: p, Drop: true})
}

// DropNth loses the n-th datagram from now on, counted from 1.
func (f *Fabric) DropNth(from, to netip.Addr, n int) *Filter {
	return f.Rule(Rule{From: from, To: to, Nth: n, Drop: true})
}

// Delay delays by d and at random by up to jitter more; jitter changes the order.
func (f *Fabric) Delay(from, to netip.Addr, d, jitter time.Duration) *Filter {
	return f.Rule(Rule{From: from, To: to, Delay: d, Jitter: jitter})
}

// Reorder lets datagrams, with probability p, be overtaken by 1 to 64 that follow. It is
// several rules, one for each distance, so it gives several filters: each counts its own
// matches, and to end it all are removed.
func (f *Fabric) Reorder(from, to netip.Addr, p float64) []*Filter {
	depths := []int{1, 2, 5, 17, 64} // each has its share
	var ws []*Filter
	for _, n := range depths {
		if p > 0 {
			ws = append(ws, f.Rule(Rule{From: from, To: to, Chance: p / float64(len(depths)), Behind: n}))
		}
	}
	return ws
}

// Duplicate sends datagrams, with probability p, a second time, up to 1 ms later.
func (f *Fabric) Duplicate(from, to netip.Addr, p float64) *Filter {
	if p <= 0 {
		return f.Rule(Rule{From: from, To: to})
	}
	return f.Rule(Rule{From: from, To: to, Chance: p, Duplicate: 1, Behind: 7})
}

// Corrupt turns over one bit of datagrams with probability p.
func (f *Fabric) Corrupt(from, to netip.Addr, p float64) *Filter {
	if p <= 0 {
		return f.Rule(Rule{From: from, To: to})
	}
	return f.Rule(Rule{From: from, To: to, Chance: p, Flip: -1})
}

// Cut loses everything until heal is called.
func (f *Fabric) Cut(from, to netip.Addr) (heal func()) {
	return f.Rule(Rule{From: from, To: to, Drop: true}).Remove
}
