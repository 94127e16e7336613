package rdma

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/internal/stream"
	"github.com/verbena-rdma/verbena/verbs"
)

// How many requests and receives a queue pair has, if the configuration says nothing.
// They are most of what an idle connection costs: where the peer's protocol is known, only
// C programs, whose every message takes a credit, get many.
const (
	sendQueue       = 16
	recvQueue       = 32
	recvQueueUnsure = 32 // of a dialer, whose peer may be a C program
	sendRsockets    = 64
	recvRsockets    = 128

	// The receives that Verbena begins with: most small exchanges need no more.
	baseCredits = 12
	baseSize    = 512

	// What a peer of rsockets may fill: the buffers of the hello, which anybody can have who
	// asks, are small, and those that are lent to one that sends much (Conn.lend) are at most
	// ringDefault if Config.RecvBuf is not set.
	ringBuffers = 4
	ringSize    = 4 << 10 // of each of the first
	ringDefault = 256 << 10

	probeCount = 3 // keep-alive probes without an answer
)

// instance tells processes apart in hellos.
var instance = sync.OnceValue(func() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
})

// half is a connection in the making: what dialer and listener do alike.
type half struct {
	cfg        *Config
	c          *Conn
	hello      stream.Hello
	recvQ      int
	sendQ      int
	posted     int
	ringMemory stream.RecvMemory
	table      []byte
	baseMemory stream.RecvMemory
}

// maker is what a cm.Route and a cm.Request have in common.
type maker interface {
	Device() *verbs.Device
	CreateQP(*verbs.PD, verbs.QPConfig) (*verbs.QP, error)
}

// newHalf takes a place in a hub and makes the queue pair. base says whether receives of
// Verbena are wanted, ring whether memory that a peer of rsockets writes is.
func newHalf(cfg *Config, m maker, recvQ, sendQ int, base, ring bool) (h *half, err error) {
	if cfg.RecvQueue > 0 {
		recvQ = max(cfg.RecvQueue, baseCredits)
	}
	if cfg.SendQueue > 0 {
		sendQ = cfg.SendQueue
	}
	room := recvQ + sendQ
	hub, err := acquireHub(m.Device(), room)
	if err != nil {
		return nil, err
	}
	h = &half{cfg: cfg, c: newConn(cfg, hub, room), recvQ: recvQ, sendQ: sendQ}
	if err := h.fit(m, base, ring); err != nil {
		if h.c.qp != nil {
			h.c.qp.Close() // before the queue, which it keeps open
		}
		h.c.mem.free(hub)
		hub.release(room)
		return nil, err
	}
	return h, nil
}

// fit makes memory and queue pair.
func (h *half) fit(m maker, base, ring bool) error {
	h.hello.Flags, h.hello.IOMap = stream.FlagIOMap, h.cfg.Maps
	if base {
		if err := h.makeBase(); err != nil {
			return err
		}
	}
	if ring {
		if err := h.makeRing(); err != nil {
			return err
		}
	}
	return h.makeQP(m)
}

// makeBase makes the receives that Verbena begins with.
func (h *half) makeBase() (err error) {
	mem := &h.c.mem
	n := baseCredits * baseSize
	if mem.base, err = h.c.hub.mem.alloc(n); err != nil {
		return err
	}
	h.baseMemory = stream.RecvMemory{Size: baseSize, Count: baseCredits, Mem: mem.base.b[:n:n]}
	h.hello.Ext = stream.Extension{Version: stream.ExtensionVersion, Credits: baseCredits, RecvSize: baseSize, Instance: instance()}
	return nil
}

// makeRing makes the first buffers, and the table, that a peer of rsockets writes. It may
// do so as long as the connection lives, and nowhere else but in what it is lent.
func (h *half) makeRing() (err error) {
	mem := &h.c.mem
	size := min(h.c.opts.recvLimit(stream.Compatible)/ringBuffers, ringSize)
	ring := size * ringBuffers
	table := stream.TableLen(ringBuffers, h.cfg.Maps)
	if mem.ring, err = h.c.hub.mem.alloc(ring + table); err != nil {
		return err
	}
	b := mem.ring.b[: ring+table : ring+table]
	h.table = b[ring:]
	clear(h.table)
	if mem.ringMR, err = h.c.hub.mem.expose(b); err != nil {
		return err
	}
	first, tab := mem.ringMR.Remote(0, size), mem.ringMR.Remote(ring, table)
	h.ringMemory = stream.RecvMemory{Size: size, Count: ringBuffers, Mem: b[:ring:ring], Addr: first.Addr, RKey: first.RKey}
	h.hello.Credits = uint16(h.recvQ - stream.SpareRecvs)
	if h.hello.Ext.Version != 0 {
		h.hello.Credits = uint16(max(int(h.hello.Ext.Credits)-stream.SpareRecvs, 1))
	}
	h.hello.SGLAddr, h.hello.SGLKey, h.hello.SGLLen = tab.Addr, tab.RKey, ringBuffers
	h.hello.BufAddr, h.hello.BufKey, h.hello.BufLen = first.Addr, first.RKey, uint32(size)
	return nil
}

// makeQP makes the queue pair, with as much inline data as the protocol needs, if the
// device has that.
func (h *half) makeQP(m maker) error {
	c := h.c
	cfg := verbs.QPConfig{SendCQ: c.hub.cq, MaxSendWR: h.sendQ, MaxRecvWR: h.recvQ, MaxSendSGE: 2, MaxRecvSGE: 1,
		ManualSignal: true, UserData: c}
	sizes := []int{max(h.cfg.Inline, stream.MaxData), stream.MaxData, 0}
	if h.cfg.Inline == 0 {
		sizes = sizes[2:]
	}
	var qp *verbs.QP
	var err error
	for i, n := range sizes { // the limit of a device is found only by trying
		if i > 0 && n == sizes[i-1] {
			continue
		}
		cfg.MaxInline = n
		if qp, err = m.CreateQP(c.hub.pd, cfg); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	c.qp = qp
	c.mem.inline = min(qp.Config().MaxInline, max(h.cfg.Inline, stream.MaxData))
	if cfg.MaxInline == 0 {
		c.mem.inline = 0
	}
	if c.mem.inline < stream.MaxData {
		if c.mem.stage, err = c.hub.mem.alloc(h.sendQ * stream.MaxData); err != nil {
			return err
		}
	}
	return nil
}

// prepost posts the receives that go before the hello.
func (h *half) prepost() error {
	h.c.mem.first = h.c.mem.base
	for n := 0; ; n++ {
		r, ok := stream.InitialRecv(&h.hello, &h.baseMemory, n)
		if !ok {
			return nil
		}
		if err := h.c.qp.PostRecv(verbs.Recv(r.ID, h.c.mem.sge(r.Loc))); err != nil {
			return err
		}
		h.posted++
	}
}

// engine makes the machine.
func (h *half) engine(mode stream.Mode, peer *stream.Hello) (*stream.Engine, error) {
	c := h.c
	cfg := stream.Config{
		Mode: mode, Local: &h.hello, Peer: peer,
		SendQueue: h.sendQ, RecvQueue: h.recvQ, Posted: h.posted, Inline: c.mem.inline,
		Recv: h.baseMemory, MaxRecv: mostRecv,
		KeepAlive: c.opts.keepAlive, NoDelay: true, Now: now(),
	}
	c.mem.first = c.mem.base
	c.mem.most = min(h.recvQ, stream.MaxOutstanding) - baseCredits
	if mode == stream.Compatible {
		cfg.Recv, cfg.Table = h.ringMemory, h.table
		c.mem.first = c.mem.ring
		c.mem.most = ringBuffers // more at a time C's tables do not hold
		cfg.MaxRecv = 1 << (bits.Len(uint(c.opts.recvLimit(stream.Compatible)/ringBuffers)) - 1)
		cfg.MaxRecv = min(cfg.MaxRecv, stream.MaxRecvSize)
	}
	return stream.New(cfg)
}

// recvLimit gives what all buffers for a peer may have.
func (o *connOptions) recvLimit(m stream.Mode) int {
	switch {
	case o.recvBuf > 0:
		return o.recvBuf
	case m == stream.Compatible:
		return ringDefault
	}
	return defaultRecvBuf
}

// discard gives back what a failed attempt had. The connection manager has closed the
// queue pair.
func (h *half) discard() {
	c := h.c
	c.mu.Lock()
	c.isDown, c.over = true, true
	c.hub.timers.Stop(&c.timer)
	c.mem.free(c.hub)
	c.mu.Unlock()
	c.hub.remove(c)
	c.hub.release(c.room)
}

// param is what both sides ask of the connection manager.
func (h *half) param() *cm.ConnParam {
	return &cm.ConnParam{
		Private:            h.hello.Append(nil),
		ResponderResources: -1,
		InitiatorDepth:     -1,
		RetryCount:         stream.RetryCount,
		RNRRetryCount:      stream.RNRRetryCount,
		FlowControl:        stream.FlowControl,
	}
}

// connect makes a connection of a route, which it uses up.
func connect(ctx context.Context, cfg *Config, route *cm.Route) (c *Conn, err error) {
	h, err := newHalf(cfg, route, recvQueueUnsure, sendQueue, !cfg.Compatible, true)
	if err != nil {
		route.Close()
		return nil, err
	}
	c = h.c
	if cfg.Compatible {
		// Nothing is posted before the machine is there, so that comes first: all that it
		// needs of the peer's hello is in the reply, but receives are needed now.
		err = h.blanks()
	} else {
		err = h.prepost()
	}
	if err != nil {
		route.Close()
		h.discard()
		return nil, err
	}
	c.hub.add(c)
	c.hub.role.recall() // whoever waits for completions also reads what the peer's manager says
	conn, err := route.Connect(ctx, h.param())
	if err != nil {
		h.discard()
		return nil, err
	}
	peer, err := stream.ParseHello(conn.Private(), stream.Reply)
	var mode stream.Mode
	if err == nil {
		mode, err = stream.Negotiate(&h.hello, &peer)
	}
	var e *stream.Engine
	if err == nil {
		if mode == stream.Verbena {
			c.mem.dropRing(&c.hub.mem)
		}
		e, err = h.engine(mode, &peer)
	}
	if err != nil {
		conn.Close()
		h.discard()
		return nil, fmt.Errorf("rdma: the peer's answer: %w", err)
	}
	c.begin(e)
	c.start(conn)
	return c, nil
}

// blanks posts receives without memory.
func (h *half) blanks() error {
	for i := range h.recvQ {
		if err := h.c.qp.PostRecv(verbs.Recv(uint64(i), verbs.SGE{})); err != nil {
			return err
		}
		h.posted++
	}
	return nil
}

// errHello is why a request was rejected.
var errHello = errors.New("rdma: the request does not speak the protocol")

// accept makes a connection of a request, which it uses up. It waits for the peer. The
// connection is small until Conn.accepted.
func accept(ctx context.Context, cfg *Config, req *cm.Request) (*Conn, error) {
	peer, err := stream.ParseHello(req.Private(), stream.Request)
	if err != nil {
		req.Reject(nil)
		return nil, fmt.Errorf("%w: %w", errHello, err)
	}
	verbena := peer.Ext.Version != 0 && !cfg.Compatible
	recvQ, sendQ := recvRsockets, sendRsockets
	if verbena {
		recvQ, sendQ = recvQueue, sendQueue
	}
	h, err := newHalf(cfg, req, recvQ, sendQ, verbena, !verbena)
	if err != nil {
		req.Close()
		return nil, err
	}
	c := h.c
	c.queued = true
	mode, err := stream.Negotiate(&peer, &h.hello)
	if err == nil {
		err = h.prepost()
	}
	var e *stream.Engine
	if err == nil {
		e, err = h.engine(mode, &peer)
	}
	if err != nil {
		req.Close()
		h.discard()
		return nil, err
	}
	c.begin(e)
	c.mu.Lock()
	c.post() // receives only: nothing may be sent yet
	c.mu.Unlock()
	c.hub.add(c)
	conn, err := req.Accept(ctx, h.param())
	if err != nil {
		h.discard()
		return nil, err
	}
	c.start(conn)
	return c, nil
}
