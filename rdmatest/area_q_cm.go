package rdmatest

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibcm"
	"github.com/verbena-rdma/verbena/internal/wire"
)

// Area Q, second part: messages of the connection manager that no honest host sends.
func areaHostileCM() []check {
	const needs = Faults | VirtualTime
	return []check{
		{"C-316_GarbageToCM", needs, garbageToCM},
		{"C-326_RequestFlood", needs, requestFlood},
		{"C-327_ForgedCM", anyWire, forgedCM},
		{"C-327_StrangerToActive", anyWire, strangerToActive},
		{"C-327_StrangerToPassive", anyWire, strangerToPassive},
		{"C-328_Replay", needs, replay},
		{"C-329_NoAmplification", needs, noAmplification},
		{"C-330_PrivateData", 0, privateData},
	}
}

// forgeMAD sends a management datagram.
func (t *tb) forgeMAD(from, to netip.Addr, mad []byte) {
	p := wire.Packet{
		Opcode: wire.UDSendOnly, DestQP: 1, PKey: 0xFFFF, MigReq: true,
		DETH: wire.DETH{QKey: 0x80010000, SrcQP: 1}, Payload: mad,
	}
	t.Fabric.Forge(from, to, p.AppendTo(nil))
}

// encode gives the bytes of a message.
func encode(m interface{ Encode(*[ibcm.MADLen]byte) }) []byte {
	var b [ibcm.MADLen]byte
	m.Encode(&b)
	return b[:]
}

// overheard collects the messages that pass between two hosts.
type overheard struct {
	mu  sync.Mutex
	all []heard
}

type heard struct {
	from, to netip.AddrPort
	cm       uint16
	payload  []byte
}

func (t *tb) overhear(match func(Datagram) bool) (*overheard, *Filter) {
	o := &overheard{}
	return o, t.Fabric.Rule(Rule{Match: match, See: func(d Datagram) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.all = append(o.all, heard{d.From, d.To, d.CM, bytes.Clone(d.Payload)})
	}})
}

// mad gives the management datagram of the last message of a kind.
func (o *overheard) mad(t *tb, kind uint16) []byte {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := len(o.all) - 1; i >= 0; i-- {
		if o.all[i].cm == kind {
			return o.all[i].payload[20 : 20+ibcm.MADLen]
		}
	}
	t.Fatalf("no message %#x passed", kind)
	return nil
}

func isCM(d Datagram) bool { return d.CM != 0 }

func garbageToCM(t *tb) {
	c, s, l := t.meet(nil, nil)
	rng := rand.New(rand.NewPCG(t.Fabric.Seed(), 5))
	for i := range 3000 {
		mad := make([]byte, 256)
		for j := range mad {
			mad[j] = byte(rng.Uint32())
		}
		if i%2 == 0 { // a right header, and noise behind it
			copy(mad, []byte{1, 7, 2, 3, 0, 0, 0, 0})
			mad[16], mad[17] = 0, byte(0x10+i/2%12)
		}
		if i%5 == 0 {
			mad = mad[:rng.IntN(256)&^3]
		}
		t.forgeMAD(t.Addr, t.PeerAddr, mad)
		if i%256 == 0 {
			t.settle()
		}
	}
	t.settle()
	t.noEvent(c.ch)
	for { // a request by chance is no fault, but there is no other event
		ev, ok, err := s.ch.TryEvent()
		t.ok(err, "look for an event")
		if !ok {
			break
		}
		if ev.Type != cm.ConnectRequest {
			t.Errorf("garbage became %v", ev.Type)
			continue
		}
		t.closed(ev.ID, "request")
	}
	t.exchange(c, s)
	t.dial(t.channel(t.Provider), s.ch, l, nil, nil)
}

// forgedREQ is a request that a listener accepts.
func (t *tb) forgedREQ(rng *rand.Rand, from netip.Addr, port uint16) *ibcm.REQ {
	t.Helper()
	q := &ibcm.REQ{
		LocalCommID: rng.Uint32() | 1, ServiceID: ibcm.Service(ib.PortSpaceTCP, port),
		LocalGUID: ib.GUID(rng.Uint64()), LocalQPN: ib.QPN(rng.Uint32()&0xFFFFFF | 2),
		ResponderResources: 1, InitiatorDepth: 1, RemoteTimeout: 17, LocalTimeout: 17,
		StartingPSN: ib.PSN(rng.Uint32() & 0xFFFFFF), RetryCount: 7, RNRRetryCount: 7, MaxCMRetries: 15,
		PKey: 0xFFFF, MTU: ib.MTU1024,
		Primary: ibcm.PathInfo{
			LocalLID: 0xFFFF, RemoteLID: 0xFFFF, LocalGID: ib.GIDFromAddr(from), RemoteGID: ib.GIDFromAddr(t.PeerAddr),
			HopLimit: 64, AckTimeout: 16,
		},
	}
	h := ibcm.CMAHeader{Src: from, Dst: t.PeerAddr, SrcPort: uint16(rng.Uint32()) | 1}
	t.ok(h.Encode(q.Private[:]), "encode the addresses")
	return q
}

// A flood of requests fills the backlog, and nothing else.
func requestFlood(t *tb) {
	const backlog = 16
	c, s, _ := t.meet(nil, nil)
	lch, l := t.listener(backlog)
	port := l.LocalAddr().Port()
	rng := rand.New(rand.NewPCG(t.Fabric.Seed(), 6))
	for i := range 5000 {
		from := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		if t.Addr.Is6() {
			from = netip.AddrFrom16([16]byte{0xFD, 14: byte(i >> 8), 15: byte(i)})
		}
		t.forgeMAD(from, t.PeerAddr, encode(t.forgedREQ(rng, from, port)))
		if i%256 == 0 {
			t.settle()
		}
	}
	t.settle()
	t.exchange(c, s) // others are not disturbed
	n := 0
	for {
		ev, ok, err := lch.TryEvent()
		t.ok(err, "look for a request")
		if !ok {
			break
		}
		n++
		t.closed(ev.ID, "request")
	}
	if n == 0 || n > backlog {
		t.Errorf("%d requests are waiting, the backlog is %d", n, backlog)
	}
	t.dial(t.channel(t.Provider), lch, l, nil, nil)
}

// secrets are what the two sides of a connection call it.
type secrets struct {
	client, server uint32
	req            ibcm.REQ
	rep            ibcm.REP
}

// meetOverheard makes a connection and learns its secrets.
func (t *tb) meetOverheard() (c, s *peer, x *secrets) {
	t.Helper()
	o, w := t.overhear(isCM)
	c, s, _ = t.meet(nil, nil)
	w.Remove()
	x = &secrets{}
	t.ok(x.req.Decode(o.mad(t, CMReq)), "decode the request")
	t.ok(x.rep.Decode(o.mad(t, CMRep)), "decode the reply")
	x.client, x.server = x.req.LocalCommID, x.rep.LocalCommID
	return c, s, x
}

// messages are those that would end, or change, a connection. qpn is the receiver's.
func (x *secrets) messages(local, remote uint32, qpn ib.QPN) [][]byte {
	return [][]byte{
		encode(&ibcm.DREQ{LocalCommID: local, RemoteCommID: remote, RemoteQPN: qpn}),
		encode(&ibcm.DREP{LocalCommID: local, RemoteCommID: remote}),
		encode(&ibcm.REJ{LocalCommID: local, RemoteCommID: remote, Reason: ib.RejectConsumer}),
		encode(&ibcm.RTU{LocalCommID: local, RemoteCommID: remote}),
		encode(&ibcm.REP{LocalCommID: local, RemoteCommID: remote, LocalQPN: 77}),
	}
}

// Right ids, wrong host: ignored. The one who is attacked is the client.
func strangerToActive(t *tb) {
	c, s, x := t.meetOverheard()
	for _, m := range x.messages(x.server, x.client, x.req.LocalQPN) {
		t.forgeMAD(t.stranger(), t.Addr, m)
	}
	t.differs(func() { t.unmoved(c, s) })
}

// The same to the server.
func strangerToPassive(t *tb) {
	c, s, x := t.meetOverheard()
	for _, m := range x.messages(x.client, x.server, x.rep.LocalQPN) {
		t.forgeMAD(t.stranger(), t.PeerAddr, m)
	}
	t.differs(func() { t.unmoved(c, s) })
}

// stranger is the address of no device.
func (t *tb) stranger() netip.Addr {
	if t.Addr.Is6() {
		return netip.MustParseAddr("fd00::99")
	}
	return netip.MustParseAddr("10.0.0.99")
}

// unmoved checks that a connection lives on.
func (t *tb) unmoved(c, s *peer) {
	t.Helper()
	t.settle()
	t.noEvent(c.ch, s.ch)
	c.state(ib.StateRTS)
	s.state(ib.StateRTS)
	t.exchange(c, s)
}

// Messages that do not fit a connection exactly are ignored.
func forgedCM(t *tb) {
	c, s, x := t.meetOverheard()
	client, server := x.client, x.server
	// Right host, guessed ids.
	rng := rand.New(rand.NewPCG(t.Fabric.Seed(), 7))
	rounds := 200
	if !t.Virtual {
		rounds = 10
	}
	for range rounds {
		for _, m := range x.messages(rng.Uint32(), server, x.rep.LocalQPN) {
			t.forgeMAD(t.Addr, t.PeerAddr, m)
		}
		for _, m := range x.messages(client, rng.Uint32(), x.rep.LocalQPN) {
			t.forgeMAD(t.Addr, t.PeerAddr, m)
		}
		t.settle()
	}
	// Everything right but the queue pair number.
	t.forgeMAD(t.Addr, t.PeerAddr, encode(&ibcm.DREQ{LocalCommID: client, RemoteCommID: server, RemoteQPN: x.rep.LocalQPN ^ 1}))
	t.unmoved(c, s)
	// The right one ends it.
	t.forgeMAD(t.Addr, t.PeerAddr, encode(&ibcm.DREQ{LocalCommID: client, RemoteCommID: server, RemoteQPN: x.rep.LocalQPN}))
	s.over(io.EOF)
}

// A recorded session that is played again, during and after the connection, makes no
// second connection and delivers nothing twice.
func replay(t *tb) {
	o, w := t.overhear(func(Datagram) bool { return true })
	c, s, _ := t.meet(nil, nil)
	t.exchange(c, s)
	w.Remove()
	again := func(what string) {
		for _, h := range o.all {
			t.Fabric.Inject(h.from, h.to, h.payload, 0)
		}
		t.settle()
		t.noEvent(s.ch, c.ch)
		s.empty()
		c.empty()
		if t.Failed() {
			t.Fatalf("replayed %s", what)
		}
	}
	again("during the connection")
	t.exchange(c, s)
	again("during the connection, later")
	t.ok(c.id.Disconnect(), "disconnect")
	s.over(io.EOF)
	t.event(c.ch, cm.Disconnected)
	c.flushed()
	s.flushed()
	again("after the connection")
	t.closed(c.id, "client")
	t.closed(s.id, "server")
	again("after the end of all")
}

// Who forges a request in the name of a victim sends it no more than it costs.
func noAmplification(t *tb) {
	lch, l := t.listener(0)
	victim := netip.MustParseAddr("10.0.0.98")
	if t.Addr.Is6() {
		victim = netip.MustParseAddr("fd00::98")
	}
	to := t.Fabric.Rule(Rule{From: t.PeerAddr, To: victim})
	rng := rand.New(rand.NewPCG(t.Fabric.Seed(), 8))
	// Refused, as nobody listens there: one answer.
	q := t.forgedREQ(rng, victim, l.LocalAddr().Port()+1)
	t.forgeMAD(victim, t.PeerAddr, encode(q))
	time.Sleep(5 * time.Minute)
	if n := to.Hits(); n > 1 {
		t.Errorf("%d answers to a request that was refused", n)
	}
	before := to.Hits()
	// Accepted by a program that believes it: a bounded number of replies.
	t.forgeMAD(victim, t.PeerAddr, encode(t.forgedREQ(rng, victim, l.LocalAddr().Port())))
	s := t.requested(lch, l)
	t.ok(s.id.Accept(nil), "accept")
	ev, err := lch.Event(t.limit)
	t.ok(err, "wait for the end")
	if ev.Type == cm.Established {
		t.Error("established with a victim")
	}
	time.Sleep(10 * time.Minute)
	if n := to.Hits() - before; n == 0 || n > 32 {
		t.Errorf("%d answers to a request in a victim's name", n)
	}
}

// Private data are bytes: every length, every content.
func privateData(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	rng := rand.New(rand.NewPCG(1, 9))
	noise := func(n int) []byte {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		return p
	}
	padded := func(got, sent []byte, room int, what string) {
		t.Helper()
		if len(got) < len(sent) || len(got) > room || !bytes.HasPrefix(got, sent) || len(bytes.Trim(got[len(sent):], "\x00")) != 0 {
			t.Errorf("%s: sent %x, got %x", what, sent, got)
		}
	}
	// Every length where time costs nothing, else the first and the last ones.
	length := func(i, room int) int {
		if t.Virtual {
			return i % (room + 1)
		}
		return []int{0, 1, room - 1, room}[i/3%4]
	}
	rounds := 12
	if t.Virtual {
		rounds = 3 * (cm.MaxPrivateAccept + 1)
	}
	for i := range rounds {
		ask := noise(length(i, cm.MaxPrivateConnect))
		c := t.ask(ch, l, &cm.ConnParam{Private: ask})
		id, ev := t.request(lch, l)
		padded(ev.Private, ask, cm.MaxPrivateConnect, "request")
		if i%3 == 0 {
			no := noise(length(i/3, cm.MaxPrivateReject))
			t.ok(id.Reject(no), "reject")
			padded(t.event(ch, cm.Rejected).Private, no, cm.MaxPrivateReject, "reject")
		} else {
			s := t.equip("server", lch, id)
			yes := noise(length(i, cm.MaxPrivateAccept))
			t.ok(id.Accept(&cm.ConnParam{Private: yes}), "accept")
			padded(t.event(ch, cm.Established).Private, yes, cm.MaxPrivateAccept, "accept")
			t.event(lch, cm.Established)
			t.closed(s.id, "server")
			t.event(ch, cm.Disconnected)
		}
		t.closed(id, "request")
		t.closed(c.id, "client")
		t.settleCM(c)
	}
	t.noEvent(lch)
}
