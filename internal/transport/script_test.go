package transport

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// A script is a test of two queue pairs that are connected back to back. Time stands
// still but for the steps that move it, and every packet waits until a step says what
// happens to it. What was not expected by the end of the test makes it fail.
//
//	x := newScript(t, nil)
//	x.b.recv(1, 64)
//	x.a.send(7, "hello")
//	x.a.wantPacket(wire.RCSendOnly, 0, "ack")   // the next packet of a: PSN, counted from the first
//	x.deliver()                                  // or x.drop(), x.keep()
//	x.b.wantRecv(1, ib.StatusSuccess, 5)
//	x.b.wantAck(0, wire.AckNoLimit)
//	x.deliver()
//	x.a.wantDone(7, ib.StatusSuccess)
type script struct {
	testing.TB
	now   time.Duration
	a, b  *end
	held  *flight
	kept  []*flight
	log   []string
	quiet bool // no log
}

// flight is a packet on its way.
type flight struct {
	from *end
	b    []byte // without ICRC
}

// end is one of the two queue pairs with its memory.
type end struct {
	x       *script
	name    string
	q       *QP
	peer    *end
	psn     ib.PSN // of its first request
	table   *mem.Table
	buf     []byte
	spare   []byte // what follows buf in memory
	mr      *mem.Region
	flights []*flight
	done    []Completion
	events  []ib.EventType
	out     Output
}

// setup says what is unusual about a script. Its zero value: MTU 256, PSNs 0x100 and
// 0x200, depth 4, 3 retries, 16.8 ms, RNR for ever after 0.64 ms, all access rights.
type setup struct {
	mtu        ib.MTU
	psn        ib.PSN // of both directions
	caps       driver.Caps
	depth      int // -1: 0
	destDepth  int // -1: 0
	retry      int // -1: 0
	rnrRetry   int // -1: 0
	timeout    time.Duration
	rnrTimer   time.Duration
	access     ib.Access // of the queue pairs; none: 1<<31
	regAccess  ib.Access
	signalAll  bool
	bufSize    int
	window     int
	stayRTR    bool // b does not go to RTS
	neverTimer bool
}

func or[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

func newScript(t testing.TB, s *setup) *script {
	t.Helper()
	if s == nil {
		s = &setup{}
	}
	x := &script{TB: t}
	x.a = x.newEnd("a", 0x11, s)
	x.b = x.newEnd("b", 0x22, s)
	x.a.peer, x.b.peer = x.b, x.a
	x.a.psn, x.b.psn = or(s.psn, 0x100), or(s.psn, 0x200)
	x.a.connect(s, s.stayRTR)
	x.b.connect(s, s.stayRTR)
	t.Cleanup(x.finish)
	return x
}

func (x *script) newEnd(name string, n ib.QPN, s *setup) *end {
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	e := &end{x: x, name: name, table: mem.NewTable(rng.Uint32)}
	size := or(s.bufSize, 64<<10)
	all := make([]byte, size+8192)
	e.buf, e.spare = all[:size:size], all[size:]
	var err error
	e.mr, err = e.table.Register(1, e.buf, 0x10000, or(s.regAccess, ib.LocalWrite|ib.RemoteAny))
	if err != nil {
		x.Fatal(err)
	}
	c := s.caps
	if c == (driver.Caps{}) {
		c = driver.Caps{MaxSendWR: 32, MaxRecvWR: 32, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 256}
	}
	e.q, err = New(Config{QPN: n, Type: ib.RC, Caps: c, SignalAll: s.signalAll, Domain: 1, Memory: e.table})
	if err != nil {
		x.Fatal(err)
	}
	if s.window != 0 {
		e.q.SetWindow(s.window)
	}
	e.out = Output{Buf: make([]byte, 0, 64<<10), Ends: make([]int, 0, 1024), Max: 64 << 10}
	return e
}

// connect moves e to RTS.
func (e *end) connect(s *setup, stay bool) {
	zero := func(v, d int) int {
		if v < 0 {
			return 0
		}
		return or(v, d)
	}
	access := or(s.access, ib.RemoteAny) &^ (1 << 31)
	e.modify(driver.QPAttr{State: ib.StateInit, Port: 1, Access: access},
		ib.AttrState|ib.AttrPort|ib.AttrPKeyIndex|ib.AttrAccess)
	e.modify(driver.QPAttr{
		State: ib.StateRTR, PathMTU: or(s.mtu, ib.MTU256), DestQPN: e.peer.q.cfg.QPN, RQPSN: e.peer.psn,
		MaxDestRDAtomic: zero(s.destDepth, 4), MinRNRTimer: or(s.rnrTimer, 640*time.Microsecond),
	}, ib.AttrState|ib.AttrPathMTU|ib.AttrDestQPN|ib.AttrRQPSN|ib.AttrMaxDestRDAtomic|ib.AttrMinRNRTimer|ib.AttrAV)
	if stay && e.name == "b" {
		return
	}
	timeout := or(s.timeout, 16777*time.Microsecond)
	if s.neverTimer {
		timeout = 0
	}
	e.modify(driver.QPAttr{
		State: ib.StateRTS, SQPSN: e.psn, MaxRDAtomic: zero(s.depth, 4), Timeout: timeout,
		RetryCount: zero(s.retry, 3), RNRRetry: zero(s.rnrRetry, 7),
	}, ib.AttrState|ib.AttrSQPSN|ib.AttrMaxRDAtomic|ib.AttrTimeout|ib.AttrRetryCount|ib.AttrRNRRetry)
}

func (e *end) modify(a driver.QPAttr, m ib.QPAttrMask) {
	e.x.Helper()
	if err := e.q.Modify(e.x.now, &a, m); err != nil {
		e.x.Fatalf("%s: modify to %v: %v", e.name, a.State, err)
	}
	e.pump()
}

func (e *end) state(s ib.QPState) { e.modify(driver.QPAttr{State: s}, ib.AttrState) }

// note writes a line of the log that a failing test prints.
func (x *script) note(format string, v ...any) {
	if x.quiet {
		return
	}
	x.log = append(x.log, fmt.Sprintf("%12v  ", x.now)+fmt.Sprintf(format, v...))
}

func (x *script) failf(format string, v ...any) {
	x.Helper()
	if n := len(x.log); n > 60 {
		x.log = x.log[n-60:]
	}
	x.Fatalf("%s\nwhat happened:\n%s", fmt.Sprintf(format, v...), strings.Join(x.log, "\n"))
}

// pump collects what the queue pair has to give.
func (e *end) pump() {
	for i := 0; ; i++ {
		e.out.Buf, e.out.Ends = e.out.Buf[:0], e.out.Ends[:0]
		more := e.q.Transmit(e.x.now, &e.out)
		start := 0
		for _, n := range e.out.Ends {
			f := &flight{from: e, b: slices.Clone(e.out.Buf[start : n-wire.ICRCLen])}
			start = n
			e.flights = append(e.flights, f)
			e.x.note("%s sends %s", e.name, f)
		}
		if !more {
			break
		}
		if i > 100000 {
			e.x.failf("%s: Transmit never ends", e.name)
		}
	}
	for _, c := range e.q.Completions() {
		e.x.note("%s completes %s", e.name, doneString(c))
		e.done = append(e.done, c)
	}
	if b := e.q.broken(); b != "" {
		e.x.failf("%s: %s", e.name, b)
	}
	for _, v := range e.q.Events() {
		e.x.note("%s raises %v", e.name, v)
		e.events = append(e.events, v)
	}
}

func doneString(c Completion) string {
	kind := "send"
	if c.Recv {
		kind = "receive"
	}
	return fmt.Sprintf("%s %d: %v, %v, %d bytes, imm %#x, flags %v, vendor %#x", kind, c.ID, c.Status, c.Opcode, c.ByteLen, c.Imm, c.Flags, c.VendorErr)
}

func (f *flight) packet() *wire.Packet {
	var p wire.Packet
	if err := p.Decode(f.b); err != nil {
		panic(err)
	}
	return &p
}

func (f *flight) String() string {
	p := f.packet()
	s := fmt.Sprintf("%v psn %v", p.Opcode, p.PSN)
	if p.AckReq {
		s += " ack"
	}
	if p.Solicited {
		s += " se"
	}
	if p.Opcode.Has(wire.HasAETH) {
		s += fmt.Sprintf(" {%v, msn %d}", p.AETH.Syndrome, p.AETH.MSN)
	}
	if p.Opcode.Has(wire.HasRETH) {
		s += fmt.Sprintf(" {va %#x, len %d}", p.RETH.Addr, p.RETH.Len)
	}
	return s + fmt.Sprintf(" %d bytes", len(p.Payload))
}

// sge names n bytes of the end's buffer.
func (e *end) sge(off, n int) driver.SGE {
	return driver.SGE{Addr: 0x10000 + uint64(off), Len: uint32(n), LKey: e.mr.LKey()}
}

// req is a send request in a script.
type req struct {
	id      uint64
	op      ib.Opcode
	flags   ib.SendFlags // ib.Signaled is added unless silent
	silent  bool
	sgl     []driver.SGE
	data    string // inline if sgl is nil
	to      uint64 // remote address, from the start of the peer's buffer
	rkey    ib.RKey
	imm     uint32
	compare uint64
	swap    uint64
}

func (e *end) post(rs ...req) {
	e.x.Helper()
	for i := range rs {
		e.fill(&rs[i])
	}
	e.pump()
}

// fill posts without transmitting.
func (e *end) fill(r *req) {
	e.x.Helper()
	ss := e.q.SendSlots()
	if len(ss) == 0 {
		e.x.failf("%s: send queue full", e.name)
	}
	s := &ss[0]
	s.ID, s.Opcode, s.Flags = r.id, r.op, r.flags
	if !r.silent {
		s.Flags |= ib.Signaled
	}
	s.Addr, s.RKey, s.Imm, s.Compare, s.Swap = 0x10000+r.to, or(r.rkey, e.peer.mr.RKey()), r.imm, r.compare, r.swap
	s.SGL = append(s.SGL, r.sgl...)
	if r.sgl == nil && r.data != "" {
		s.Data = append(s.Data, r.data...)
		s.Flags |= ib.Inline
	}
	e.q.CommitSend(1)
	e.x.note("%s posts %v %d", e.name, r.op, r.id)
}

func (e *end) send(id uint64, data string) {
	e.x.Helper()
	e.post(req{id: id, op: ib.OpSend, data: data})
}

// recv posts a receive of the n bytes at off of the buffer.
func (e *end) recv(id uint64, off, n int) {
	e.x.Helper()
	e.recvList(id, e.sge(off, n))
}

func (e *end) recvList(id uint64, l ...driver.SGE) {
	e.x.Helper()
	ss := e.q.RecvSlots()
	if len(ss) == 0 {
		e.x.failf("%s: receive queue full", e.name)
	}
	ss[0].ID = id
	ss[0].SGL = append(ss[0].SGL, l...)
	e.q.CommitRecv(1)
	e.pump()
}

// next takes the oldest packet of e that no step has dealt with.
func (e *end) next() *flight {
	e.x.Helper()
	if e.x.held != nil {
		e.x.failf("the step before left a packet: %s", e.x.held)
	}
	if len(e.flights) == 0 {
		e.x.failf("%s sends nothing", e.name)
	}
	f := e.flights[0]
	e.flights = e.flights[1:]
	e.x.held = f
	return f
}

// wantPacket checks the next request packet of e. psn counts from its first. what may
// have "ack" and "se".
func (e *end) wantPacket(op wire.Opcode, psn int, what string) *wire.Packet {
	e.x.Helper()
	f := e.next()
	p := f.packet()
	want := &wire.Packet{Opcode: op, PSN: e.psn.Add(psn), AckReq: strings.Contains(what, "ack"), Solicited: strings.Contains(what, "se")}
	if p.Opcode != want.Opcode || p.PSN != want.PSN || p.AckReq != want.AckReq || p.Solicited != want.Solicited {
		e.x.failf("%s sends %s\nwant %v psn %v %s", e.name, f, want.Opcode, want.PSN, what)
	}
	return p
}

// wantResponse checks the next response packet of e to its peer's request psn.
func (e *end) wantResponse(op wire.Opcode, psn int, syn wire.Syndrome) *wire.Packet {
	e.x.Helper()
	f := e.next()
	p := f.packet()
	if p.Opcode != op || p.PSN != e.peer.psn.Add(psn) || p.Opcode.Has(wire.HasAETH) && p.AETH.Syndrome != syn {
		e.x.failf("%s sends %s\nwant %v psn %v {%v}", e.name, f, op, e.peer.psn.Add(psn), syn)
	}
	return p
}

func (e *end) wantAck(psn int, syn wire.Syndrome) *wire.Packet {
	e.x.Helper()
	return e.wantResponse(wire.RCAcknowledge, psn, syn)
}

func (e *end) wantSilence() {
	e.x.Helper()
	if len(e.flights) != 0 {
		e.x.failf("%s sends %s\nwant nothing", e.name, e.flights[0])
	}
}

// deliver gives the packet of the step before to its receiver.
func (x *script) deliver() {
	x.Helper()
	f := x.held
	if f == nil {
		x.failf("no packet to deliver")
	}
	x.held = nil
	x.give(f)
}

func (x *script) give(f *flight) {
	x.note("%s receives %s", f.from.peer.name, f)
	e := f.from.peer
	e.q.Receive(x.now, f.packet())
	e.pump()
}

func (x *script) drop() {
	x.note("lost: %s", x.held)
	x.held = nil
}

// keep takes the packet of the step before aside; release gives all of those.
func (x *script) keep() {
	x.kept = append(x.kept, x.held)
	x.held = nil
}

func (x *script) release() {
	kept := x.kept
	x.kept = nil
	for _, f := range kept {
		x.give(f)
	}
}

// forge gives e a packet that its peer did not send. PSN is taken as it is.
func (e *end) forge(p wire.Packet) {
	p.DestQP = e.q.cfg.QPN
	p.PKey = 0xffff
	e.x.note("%s receives forged %v psn %v", e.name, p.Opcode, p.PSN)
	e.q.Receive(e.x.now, &p)
	e.pump()
}

// run delivers everything until both sides are quiet.
func (x *script) run() {
	x.Helper()
	for i := 0; len(x.a.flights)+len(x.b.flights) != 0; i++ {
		if i > 1000000 {
			x.failf("the packets never end")
		}
		for _, e := range []*end{x.a, x.b} {
			if len(e.flights) != 0 {
				f := e.flights[0]
				e.flights = e.flights[1:]
				x.give(f)
			}
		}
	}
}

// after moves time by d without calling anybody.
func (x *script) after(d time.Duration) { x.now += d }

// advance moves time to the deadline of e and tells it. It gives the time that passed.
func (e *end) advance() time.Duration {
	e.x.Helper()
	d, ok := e.q.Deadline()
	if !ok {
		e.x.failf("%s waits for nothing", e.name)
	}
	was := e.x.now
	e.x.now = max(e.x.now, d)
	e.x.note("%s: timer", e.name)
	e.q.Advance(e.x.now)
	if d2, ok := e.q.Deadline(); ok && d2 <= e.x.now {
		e.x.failf("%s: deadline %v stays although it has passed", e.name, d2)
	}
	e.pump()
	return e.x.now - was
}

// settle runs with timers until nothing waits.
func (x *script) settle() {
	x.Helper()
	for i := 0; ; i++ {
		x.run()
		e := x.a
		da, oka := x.a.q.Deadline()
		db, okb := x.b.q.Deadline()
		if !oka && !okb {
			return
		}
		if !oka || okb && db < da {
			e = x.b
		}
		if i > 10000 {
			x.failf("never settles")
		}
		e.advance()
	}
}

// wantDone checks the next completion of e, which is one of a send.
func (e *end) wantDone(id uint64, st ib.Status) Completion {
	e.x.Helper()
	return e.want(false, id, st)
}

// wantRecv checks the next completion of e, which is one of a receive.
func (e *end) wantRecv(id uint64, st ib.Status, n int) Completion {
	e.x.Helper()
	c := e.want(true, id, st)
	if st == ib.StatusSuccess && int(c.ByteLen) != n {
		e.x.failf("%s: receive %d has %d bytes, want %d", e.name, id, c.ByteLen, n)
	}
	return c
}

func (e *end) want(recv bool, id uint64, st ib.Status) Completion {
	e.x.Helper()
	i := slices.IndexFunc(e.done, func(c Completion) bool { return c.Recv == recv })
	if i < 0 {
		e.x.failf("%s: no completion of %d (receive: %v); want %v", e.name, id, recv, st)
	}
	c := e.done[i]
	e.done = slices.Delete(e.done, i, i+1)
	if c.ID != id || c.Status != st || c.QPN != e.q.cfg.QPN || c.Solicited && st == ib.StatusSuccess && !recv ||
		st != ib.StatusSuccess && !c.Solicited {
		e.x.failf("%s completes %s\nwant %d %v (receive: %v)", e.name, doneString(c), id, st, recv)
	}
	return c
}

func (e *end) wantEvent(t ib.EventType) {
	e.x.Helper()
	if len(e.events) == 0 {
		e.x.failf("%s: no event; want %v", e.name, t)
	}
	v := e.events[0]
	e.events = e.events[1:]
	if v != t {
		e.x.failf("%s: event %v; want %v", e.name, v, t)
	}
}

func (e *end) wantState(s ib.QPState) {
	e.x.Helper()
	if e.q.State() != s {
		e.x.failf("%s is in %v; want %v", e.name, e.q.State(), s)
	}
}

func (e *end) wantBytes(off int, want []byte) {
	e.x.Helper()
	if got := e.buf[off : off+len(want)]; !bytes.Equal(got, want) {
		i := 0
		for got[i] == want[i] {
			i++
		}
		e.x.failf("%s: bytes at %d differ from byte %d on: %x, want %x", e.name, off, i, got[i:min(i+16, len(got))], want[i:min(i+16, len(want))])
	}
}

// finish fails the test for everything that no step asked for.
func (x *script) finish() {
	x.Helper()
	if x.Failed() {
		return
	}
	if x.held != nil || len(x.kept) != 0 {
		x.failf("packets were left in the hand of the script")
	}
	for _, e := range []*end{x.a, x.b} {
		if len(e.flights) != 0 {
			x.failf("%s sent something that no step expected: %s", e.name, e.flights[0])
		}
		if len(e.done) != 0 {
			x.failf("%s has a completion that no step expected: %s", e.name, doneString(e.done[0]))
		}
		if len(e.events) != 0 {
			x.failf("%s has an event that no step expected: %v", e.name, e.events[0])
		}
	}
}

// pattern fills p with bytes that depend on their place and on seed.
func pattern(p []byte, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 99))
	i := 0
	for ; i+8 <= len(p); i += 8 {
		v := r.Uint64()
		for j := range 8 {
			p[i+j] = byte(v >> (8 * j))
		}
	}
	for ; i < len(p); i++ {
		p[i] = byte(r.Uint32())
	}
	return p
}
