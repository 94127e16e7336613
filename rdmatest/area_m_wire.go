package rdmatest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
)

// Area M, third part: messages of the connection manager are lost, repeated and
// overtaken.
func areaCMWire() []check {
	const needs = Faults | VirtualTime
	return []check{
		{"C-221_SilentHost", anyWire, silentHost},
		{"C-232_EachMessageLostOnce", anyWire, eachCMLost},
		{"C-232_RequestsLost", needs, requestsLost},
		{"C-232_RepliesLost", needs, repliesLost},
		{"C-232_ReadyLost", anyWire, readyLost},
		{"C-232_DisconnectsLost", needs, disconnectsLost},
		{"C-232_RefusalLost", anyWire, refusalLost},
		{"C-232_AnswerToDisconnectLost", anyWire, answerToDisconnectLost},
		{"C-233_DuplicatesAndOrder", anyWire, cmDuplicates},
	}
}

// A host that says nothing costs no more than the caller's deadline; without one the
// manager gives up by itself, which C-232_RequestsLost waits for.
func silentHost(t *tb) {
	silent := netip.AddrPortFrom(t.stranger(), 7471)
	asked := t.Fabric.Rule(Rule{To: silent.Addr(), CM: CMReq})
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(t.limit, patience)
	defer cancel()
	start := time.Now()
	_, err := t.connectTo(ctx, silent.String(), nil)
	t.isErr(err, context.DeadlineExceeded, "connect to a silent host")
	if took := time.Since(start); took < patience || t.Virtual && took > patience+100*time.Millisecond {
		t.Errorf("gave up after %v", took)
	}
	if asked.Hits() == 0 {
		t.Error("the host was not asked")
	}
}

var cmMessages = []uint16{CMReq, CMRep, CMRtu, CMDreq, CMDrep, CMRej, CMMra}

// story is a connection from beginning to end, and a request that is refused.
func (t *tb) story(what string) {
	t.Helper()
	t.connection(what)
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	r := t.ask(ch, l, nil)
	id, _ := t.request(lch, l)
	t.ok(id.Reject([]byte("no")), "%s: reject", what)
	t.isErr(t.event(ch, cm.Rejected).Err, erefused, "%s: a request that is refused", what)
	t.settleCM(r)
	t.closed(r.id, "id")
	t.closed(r.qp, "queue pair")
	t.closed(id, "request")
	t.closed(l, "listener")
}

// connection is one from beginning to end.
func (t *tb) connection(what string) {
	t.Helper()
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	c := t.ask(ch, l, nil)
	s := t.requested(lch, l)
	time.Sleep(5 * time.Second) // the client repeats its request: MRA
	t.ok(s.id.Accept(nil), "%s: accept", what)
	t.event(ch, cm.Established)
	t.exchange(c, s)
	t.event(lch, cm.Established)
	t.ok(c.id.Disconnect(), "%s: disconnect", what)
	s.over(io.EOF)
	c.over(net.ErrClosed)
	t.settleCM(c, s)
	for _, p := range []*peer{c, s} {
		t.closed(p.id, "id")
		t.closed(p.qp, "queue pair")
	}
	t.closed(l, "listener")
}

func eachCMLost(t *tb) {
	if !t.Virtual { // each story takes its time: all in one
		lost := map[uint16]*Filter{}
		for _, m := range cmMessages {
			if m != CMDrep && m != CMRej { // see answerToDisconnectLost, refusalLost
				lost[m] = t.Fabric.Rule(Rule{CM: m, Nth: 1, Drop: true})
			}
		}
		t.story("the first of every message lost")
		for m, w := range lost {
			if w.Hits() == 0 && m != CMMra {
				t.Errorf("message %#x was not sent", m)
			}
		}
		return
	}
	for _, m := range cmMessages {
		w := t.Fabric.Rule(Rule{CM: m, Nth: 1, Drop: true})
		t.story(fmt.Sprintf("message %#x lost", m))
		if w.Hits() == 0 && m != CMMra {
			t.Errorf("message %#x was not sent", m)
		}
		w.Remove()
	}
}

func requestsLost(t *tb) {
	_, l := t.listener(0)
	ch := t.channel(t.Provider)
	w := t.Fabric.Rule(Rule{CM: CMReq, Drop: true})
	c := t.ask(ch, l, nil)
	start := time.Now()
	ev := t.event(ch, cm.Unreachable)
	t.isErr(ev.Err, syscall.ETIMEDOUT, "no answer to any request")
	if took := time.Since(start); took > 5*time.Minute {
		t.Errorf("gave up after %v", took)
	}
	if w.Hits() < 3 {
		t.Errorf("%d tries", w.Hits())
	}
	c.state(ib.StateError)
	c.flushed()
}

func repliesLost(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	t.Fabric.Rule(Rule{CM: CMRep, Drop: true})
	c := t.ask(ch, l, nil)
	s := t.requested(lch, l)
	t.ok(s.id.Accept(nil), "accept")
	for _, p := range []*peer{c, s} { // no half-open connection stays
		ev, err := p.ch.Event(t.limit)
		t.ok(err, "%s: wait for the end", p.name)
		switch ev.Type {
		case cm.Unreachable, cm.Rejected, cm.ConnectError, cm.Disconnected:
		default:
			t.Errorf("%s: event %v", p.name, ev.Type)
		}
		p.state(ib.StateError)
		p.flushed()
	}
	t.settleCM(c, s)
}

// The last message of the handshake has no answer; what comes after it heals its loss.
func readyLost(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	w := t.Fabric.Rule(Rule{CM: CMRtu, Drop: true})
	c := t.ask(ch, l, nil)
	s := t.requested(lch, l)
	t.ok(s.id.Accept(nil), "accept")
	t.event(ch, cm.Established)
	// Data flows at once, whatever the passive side's CM believes.
	t.exchange(c, s)
	t.event(lch, cm.Established)
	w.Remove()
	t.ok(c.id.Disconnect(), "disconnect")
	s.over(io.EOF)
	c.over(net.ErrClosed)
}

// A refusal that is lost is given again when the request is repeated, by the manager, or by
// the program if its manager has forgotten the request.
func refusalLost(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	w := t.Fabric.Rule(Rule{CM: CMRej, Nth: 1, Drop: true})
	t.ask(ch, l, nil)
	t.until("the refusal", func() bool {
		ev, ok, err := lch.TryEvent()
		t.ok(err, "look for a request")
		if ok && ev.Type == cm.ConnectRequest {
			t.ok(ev.ID.Reject(nil), "reject")
			t.closed(ev.ID, "request")
		}
		ev, ok, err = ch.TryEvent()
		t.ok(err, "look for the refusal")
		if ok && (ev.Type != cm.Rejected || !errors.Is(ev.Err, erefused)) {
			t.Errorf("event %v (%v), want a refusal", ev.Type, ev.Err)
		}
		return ok
	})
	if w.Hits() == 0 {
		t.Error("no refusal was lost")
	}
}

// The answer to a disconnect is given again when the disconnect is repeated.
func answerToDisconnectLost(t *tb) {
	c, s, _ := t.meet(nil, nil)
	w := t.Fabric.Rule(Rule{CM: CMDrep, Nth: 1, Drop: true})
	t.ok(c.id.Disconnect(), "disconnect")
	s.over(io.EOF)
	t.differs(func() { c.over(net.ErrClosed) })
	if w.Hits() == 0 {
		t.Error("no answer was lost")
	}
}

func disconnectsLost(t *tb) {
	c, s, _ := t.meet(nil, nil)
	t.Fabric.Rule(Rule{CM: CMDreq, Drop: true})
	t.ok(c.id.Disconnect(), "disconnect")
	ev := t.event(c.ch, cm.Disconnected)
	t.isErr(ev.Err, syscall.ETIMEDOUT, "a disconnect that nobody confirms")
	c.state(ib.StateError)
	t.noEvent(s.ch) // never heard of it
	s.state(ib.StateRTS)
}

func cmDuplicates(t *tb) {
	messages := cmMessages
	if !t.Virtual {
		messages = nil // each takes its time: all in one
		w := t.Fabric.Rule(Rule{Match: isCM, Behind: 1})
		t.story("every message late")
		w.Remove()
	}
	for _, m := range messages {
		for _, behind := range []int{0, 1, 2} {
			w := t.Fabric.Rule(Rule{CM: m, Duplicate: 1, Behind: behind})
			t.story(fmt.Sprintf("message %#x repeated %d later", m, behind))
			w.Remove()
		}
		w := t.Fabric.Rule(Rule{CM: m, Nth: 1, Behind: 2})
		t.story(fmt.Sprintf("message %#x overtaken", m))
		w.Remove()
	}
	w := t.Fabric.Rule(Rule{Match: isCM, Duplicate: 2, Behind: 3})
	if t.Virtual {
		t.story("every message three times")
	} else {
		// A kernel forgets a request that it has refused, and takes a late copy for a new one.
		t.connection("every message three times")
	}
	w.Remove()
}
