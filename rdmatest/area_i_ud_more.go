package rdmatest

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area I, more of unreliable datagrams: nobody there, errors, many peers.
func areaUDMore() []check {
	return []check{
		{"C-156_ToNowhere", 0, datagramToNowhere},
		{"C-086_LocalError", 0, datagramSendError},
		{"C-158_LocalKey", 0, datagramLocalKey},
		{"C-159_ManyPeers", 0, datagramManyPeers},
	}
}

// Datagrams that nobody takes are lost without a word, and the next one arrives.
func datagramToNowhere(t *tb) {
	a, b := t.datagrams()
	h := a.handle(b, 0)
	for i, c := range []struct {
		what string
		to   ib.QPN
		key  ib.QKey
	}{
		{"without a receive", b.qp.Num(), testKey},
		{"to a number that nobody has", (b.qp.Num() + 0x4000) & 0x7FFFFF, testKey},
		{"to QP 0", 0, testKey},
		{"to QP 1 with a key of ours", 1, testKey},
	} {
		id := uint64(10 + i)
		a.send(verbs.SendTo(id, h, c.to, c.key, a.sge(0, 8), ib.Signaled))
		a.sent(id, ib.StatusSuccess)
		b.quiet()
		a.state(ib.StateRTS)
		b.state(ib.StateRTS)
	}
	copy(a.mr.Bytes(), "the next")
	b.recv(1, 0, grhLen+8)
	a.send(verbs.SendTo(2, h, b.qp.Num(), testKey, a.sge(0, 8), ib.Signaled))
	a.sent(2, ib.StatusSuccess)
	b.got(1, ib.StatusSuccess)
	if got := string(b.mr.Bytes()[grhLen : grhLen+8]); got != "the next" {
		t.Errorf("received %q", got)
	}
	a.quiet()
	b.quiet()
}

// badDatagram sends one whose memory has no key, and one behind it. fatal: the queue pair is in ERR
// afterwards, as those of Soft-RoCE, and not in SQE, as the standard says (IBTA Vol 1 §10.3.1).
func (a *end) badDatagram(h *verbs.AH, to ib.QPN) (fatal bool) {
	a.Helper()
	a.send(verbs.SendTo(1, h, to, testKey, verbs.RawSGE(a.pd, a.mr.Remote(0, 0).Addr, 8, 0xDEAD00), ib.Signaled))
	a.send(verbs.SendTo(2, h, to, testKey, a.sge(0, 8), ib.Signaled))
	wc, err := a.scq.Next(a.limit)
	a.ok(err, "wait")
	q, err := a.qp.Query(ib.AttrState)
	a.ok(err, "query")
	switch q.State {
	case ib.StateSQE:
		if wc.ID != 1 || wc.Status != ib.StatusLocProt {
			a.Errorf("%d completed with %v, want 1 with %v", wc.ID, wc.Status, ib.StatusLocProt)
		}
	case ib.StateError:
		fatal = true
		switch wc.Status {
		case ib.StatusLocProt, ib.StatusLocQPOp, ib.StatusWRFlush: // rxe: the second, and on 6.12 sometimes the last
		default:
			a.Errorf("%d completed with %v", wc.ID, wc.Status)
		}
	default:
		a.Errorf("state %v after a request that failed with %v", q.State, wc.Status)
	}
	a.sent(2, ib.StatusWRFlush)
	return fatal
}

// A local error ends the sending alone: receives go on, and sending can begin again. A device that
// fails the queue pair as a whole says so, flushes its receives, and it can be used again from RESET.
func datagramSendError(t *tb) {
	a, b := t.datagrams()
	h, back := a.handle(b, 0), b.handle(a, 0)
	a.recv(3, 1024, grhLen+8)
	if a.badDatagram(h, b.qp.Num()) {
		a.got(3, ib.StatusWRFlush)
		a.reset()
		a.move(ib.StateInit, ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrQKey)
		a.move(ib.StateRTR, ib.AttrState)
		a.recv(3, 1024, grhLen+8)
	} else {
		b.send(verbs.SendTo(4, back, a.qp.Num(), testKey, b.sge(0, 8), ib.Signaled))
		b.sent(4, ib.StatusSuccess)
		a.got(3, ib.StatusSuccess)
		a.recv(3, 1024, grhLen+8)
	}
	a.move(ib.StateRTS, ib.AttrState|ib.AttrSQPSN)
	b.recv(5, 0, grhLen+8)
	a.send(verbs.SendTo(6, h, b.qp.Num(), testKey, a.sge(0, 8), ib.Signaled))
	a.sent(6, ib.StatusSuccess)
	b.got(5, ib.StatusSuccess)
	b.send(verbs.SendTo(7, back, a.qp.Num(), testKey, b.sge(0, 8), ib.Signaled))
	b.sent(7, ib.StatusSuccess)
	a.got(3, ib.StatusSuccess)
}

// The peer of a sender whose memory has no key hears nothing of it.
func datagramLocalKey(t *tb) {
	a, b := t.datagrams()
	b.recv(1, 0, grhLen+8)
	a.badDatagram(a.handle(b, 0), b.qp.Num())
	b.quiet()
	b.state(ib.StateRTS)
	if a.qp.State() == ib.StateRTS {
		t.Error("the library takes the queue pair for one that works")
	}
}

// One queue pair talks to 64: each gets its own, and answers whom it came from.
func datagramManyPeers(t *tb) {
	const peers = 64
	a, b := t.datagrams()
	a.scq, a.rcq = t.cq(t.a, peers, nil), t.cq(t.a, peers, nil)
	a.qp = a.datagramQP(verbs.QPConfig{MaxSendWR: peers, MaxRecvWR: peers})
	b.scq, b.rcq = t.cq(t.b, peers, nil), t.cq(t.b, peers, nil)
	all := make([]*end, peers)
	for i := range all {
		p := *b
		p.qp = p.datagramQP(verbs.QPConfig{MaxSendWR: 1, MaxRecvWR: 1})
		p.recv(uint64(i), i*128, grhLen+8)
		a.recv(uint64(i), 8192+i*128, grhLen+8)
		all[i] = &p
	}
	h := a.handle(b, 0)
	for i, p := range all {
		m := a.mr.Bytes()[i*8 : i*8+8]
		copy(m, "for no. ")
		m[7] = byte(i)
		a.send(verbs.SendTo(uint64(i), h, p.qp.Num(), testKey, a.sge(i*8, 8), ib.Signaled))
	}
	for i := range all {
		a.sent(uint64(i), ib.StatusSuccess)
	}
	for range all {
		wc, err := b.rcq.Next(t.limit)
		t.ok(err, "wait for a datagram")
		i := int(wc.ID)
		grh := b.mr.Bytes()[i*128 : i*128+grhLen]
		if m := b.mr.Bytes()[i*128+grhLen:]; wc.Status != ib.StatusSuccess || wc.QP != all[i].qp || wc.SrcQPN != a.qp.Num() || m[7] != byte(i) {
			t.Fatalf("no. %d got that of no. %d, from %v: %+v", i, m[7], wc.SrcQPN, wc)
		}
		back, err := b.pd.CreateAHFromWC(b.gid.Port, &wc, grh)
		t.ok(err, "an address handle from a completion")
		all[i].send(verbs.SendTo(uint64(i), back, wc.SrcQPN, testKey, b.sge(i*128+grhLen, 8), ib.Signaled))
		t.closed(back, "address handle of a send that may be on its way")
	}
	seen := map[ib.QPN]bool{}
	for i := range all {
		wc := a.got(uint64(i), ib.StatusSuccess)
		from := a.mr.Bytes()[8192+i*128+grhLen+7]
		if int(from) >= peers || wc.SrcQPN != all[from].qp.Num() || seen[wc.SrcQPN] {
			t.Fatalf("answer %d is that of no. %d, and comes from %v", i, from, wc.SrcQPN)
		}
		seen[wc.SrcQPN] = true
	}
	for range all {
		if wc, err := b.scq.Next(t.limit); err != nil || wc.Status != ib.StatusSuccess {
			t.Fatalf("answer %+v, %v", wc, err)
		}
	}
}

// datagramQP makes another queue pair on an end's queues, which takes datagrams with testKey.
func (e *end) datagramQP(cfg verbs.QPConfig) *verbs.QP {
	e.Helper()
	cfg.Type, cfg.SendCQ, cfg.RecvCQ = ib.UD, e.scq, e.rcq
	p := *e
	p.qp = e.newQP(cfg)
	p.move(ib.StateInit, ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrQKey)
	p.move(ib.StateRTR, ib.AttrState)
	p.move(ib.StateRTS, ib.AttrState|ib.AttrSQPSN)
	return p.qp
}
