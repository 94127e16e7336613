package rdma_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/stream"
	"github.com/verbena-rdma/verbena/verbs"
)

// rawPeer is a peer without manners: a queue pair and a hello of its own.
type rawPeer struct {
	t    testing.TB
	cm   *cm.Conn
	qp   *verbs.QP
	cq   *verbs.CQ
	mr   *verbs.MR
	them stream.Hello
}

// rawHello is what an honest peer of a mode would send.
func rawHello(mode stream.Mode, mr *verbs.MR) stream.Hello {
	r := mr.Remote(0, 4096)
	h := stream.Hello{Flags: stream.FlagIOMap, Credits: 8,
		SGLAddr: r.Addr, SGLKey: r.RKey, SGLLen: 2, BufAddr: r.Addr + 4096, BufKey: r.RKey, BufLen: 4096}
	if mode == stream.Verbena {
		h.Ext = stream.Extension{Version: 1, Credits: 12, RecvSize: 512, Instance: 42}
	}
	return h
}

// dialRaw connects with a hello that change may have spoilt.
func dialRaw(t testing.TB, p verbs.Provider, address string, mode stream.Mode, change func([]byte) []byte) (*rawPeer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	route, err := cm.Resolve(ctx, p, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	dev := route.Device()
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pd.Close() })
	cq, err := dev.CreateCQ(256, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cq.Close() })
	mr, err := pd.Alloc(1<<16, ib.LocalWrite|ib.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mr.Close() })
	qp, err := route.CreateQP(pd, verbs.QPConfig{SendCQ: cq, MaxSendWR: 64, MaxRecvWR: 64, MaxInline: 64, SignalAll: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 32 {
		if err := qp.PostRecv(verbs.Recv(uint64(i), mr.SGE(8192+i*512, 512))); err != nil {
			t.Fatal(err)
		}
	}
	h := rawHello(mode, mr)
	b := h.Append(nil)
	if change != nil {
		b = change(b)
	}
	conn, err := route.Connect(ctx, &cm.ConnParam{Private: b, ResponderResources: -1, InitiatorDepth: -1})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { conn.Close() })
	them, err := stream.ParseHello(conn.Private(), stream.Reply)
	if err != nil {
		t.Fatal(err)
	}
	return &rawPeer{t, conn, qp, cq, mr, them}, nil
}

// TestC295_BadHellos: each is refused; the listener and its connections go on.
func TestC295_BadHellos(t *testing.T) {
	var refused atomic.Int32
	l := &rig{place: onFabric(t)}
	l.server.Trace = &rdma.Trace{Refused: func(netip.AddrPort, error) { refused.Add(1) }}
	ln := l.listen(t)
	defer ln.Close()
	s, c := l.connect(t, ln)
	defer closeBoth(s, c)
	set := func(off int, b ...byte) func([]byte) []byte {
		return func(h []byte) []byte { copy(h[off:], b); return h }
	}
	n := int32(0)
	for _, x := range []struct {
		name   string
		change func([]byte) []byte
	}{
		{"empty", func([]byte) []byte { return nil }},
		{"short", func(b []byte) []byte { return b[:20] }},
		{"version 0", set(0, 0)},
		{"version 2", set(0, 2)},
		{"version 255", set(0, 255)},
		{"no credits", set(2, 0, 0)},
		{"no table", set(20, 0, 0, 0, 0)},
		{"huge table", set(20, 255, 255, 255, 255)},
		{"table that wraps", set(8, 255, 255, 255, 255, 255, 255, 255, 255)},
		{"no buffer", set(36, 0, 0, 0, 0)},
		{"buffer that wraps", set(24, 255, 255, 255, 255, 255, 255, 255, 255)},
		{"extension of version 0", func(b []byte) []byte { return append(b[:40], 'V', 'R', 'B', '1', 0, 0, 12, 9, 1, 2, 3, 4, 5, 6, 7, 8) }},
		{"extension without credits", func(b []byte) []byte { return append(b[:40], 'V', 'R', 'B', '1', 1, 0, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8) }},
		{"extension with a size of 2^255", func(b []byte) []byte {
			return append(b[:40], 'V', 'R', 'B', '1', 1, 0, 12, 255, 1, 2, 3, 4, 5, 6, 7, 8)
		}},
	} {
		_, err := dialRaw(t, l.place.client, ln.Addr().String(), stream.Compatible, x.change)
		var rej *cm.RejectError
		if !errors.As(err, &rej) || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		n++
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 30 { // whatever it is, nothing breaks
		dialRaw(t, l.place.client, ln.Addr().String(), stream.Compatible, func(b []byte) []byte {
			b = b[:rnd.IntN(len(b)+1)]
			for i := range b {
				b[i] = byte(rnd.Uint32())
			}
			return b
		})
	}
	if got := refused.Load(); got < n {
		t.Errorf("%d of %d were traced", got, n)
	}
	writes(t, s, []byte("unharmed"))
	reads(t, c, []byte("unharmed"))
	s2, c2 := l.connect(t, ln)
	closeBoth(s2, c2)
}

// TestC296_Misbehaving: each offence ends that connection with an error, and no other.
func TestC296_Misbehaving(t *testing.T) {
	imm := func(v uint32) func(*rawPeer) error {
		return func(p *rawPeer) error {
			return p.qp.PostSend(verbs.SendImm(1, v, verbs.SGE{}, 0))
		}
	}
	write := func(off uint64, n int, v uint32) func(*rawPeer) error {
		return func(p *rawPeer) error {
			return p.qp.PostSend(verbs.WriteImm(1, ib.Remote{Addr: p.them.BufAddr + off, RKey: p.them.BufKey, Len: 1 << 30}, v, p.mr.SGE(0, n), 0))
		}
	}
	for _, x := range []struct {
		name string
		mode stream.Mode
		do   func(*rawPeer) error
	}{
		{"unknown word", stream.Verbena, imm(0xFFFFFFFF)},
		{"unknown control", stream.Verbena, imm(0xE0001234)},
		{"data longer than said", stream.Verbena, func(p *rawPeer) error { return p.qp.PostSend(verbs.SendImm(1, 3, p.mr.SGE(0, 100), 0)) }},
		{"no word", stream.Verbena, func(p *rawPeer) error { return p.qp.PostSend(verbs.Send(1, p.mr.SGE(0, 10), 0)) }},
		{"more than fits", stream.Verbena, func(p *rawPeer) error { return p.qp.PostSend(verbs.SendImm(1, 4096, p.mr.SGE(0, 4096), 0)) }},
		{"write somewhere", stream.Verbena, func(p *rawPeer) error {
			return p.qp.PostSend(verbs.WriteImm(1, ib.Remote{Addr: 0x10000, RKey: 0x1234, Len: 100}, 1, p.mr.SGE(0, 100), 0))
		}},
		{"more messages than credits", stream.Verbena, func(p *rawPeer) (err error) {
			for range 40 {
				if e := p.qp.PostSend(verbs.SendImm(1, 1, p.mr.SGE(0, 1), 0)); e != nil {
					err = e
				}
			}
			return err
		}},
		{"reserved op 1", stream.Compatible, write(0, 16, 0x20000010)},
		{"reserved op 3", stream.Compatible, write(0, 16, 0x60000010)},
		{"value beyond the buffer", stream.Compatible, write(0, 16, 0x1FFFFFFF)},
		{"value of nothing sent", stream.Compatible, imm(0x10000000)},
		{"beyond the ring", stream.Compatible, write(1<<24, 16, 16)},
		{"limit that runs backwards", stream.Compatible, func(p *rawPeer) error {
			for _, l := range []uint32{0x80000100, 0x80000001} {
				if err := p.qp.PostSend(verbs.SendImm(1, l, verbs.SGE{}, 0)); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		t.Run(x.mode.String()+"/"+x.name, func(t *testing.T) {
			l := &rig{place: onFabric(t)}
			ln := l.listen(t)
			defer ln.Close()
			s, c := l.connect(t, ln)
			defer closeBoth(s, c)
			p, err := dialRaw(t, l.place.client, ln.Addr().String(), x.mode, nil)
			if err != nil {
				t.Fatal(err)
			}
			bad, err := ln.AcceptRDMA()
			if err != nil {
				t.Fatal(err)
			}
			if err := x.do(p); err != nil && !errors.Is(err, syscall.ENOMEM) {
				t.Fatal(err)
			}
			bad.SetDeadline(time.Now().Add(20 * time.Second))
			total := 0
			b := make([]byte, 1<<16)
			for {
				var n int
				n, err = bad.Read(b)
				total += n
				if err != nil {
					break
				}
			}
			var ne interface{ Timeout() bool }
			if errors.As(err, &ne) && ne.Timeout() || total > 4096 {
				t.Errorf("%d bytes, then %v", total, err)
			}
			t.Logf("%d bytes, then %v", total, err)
			start := time.Now()
			bad.Close()
			if took := time.Since(start); took > 7*time.Second {
				t.Errorf("Close took %v", took)
			}
			writes(t, s, []byte("unharmed"))
			reads(t, c, []byte("unharmed"))
		})
	}
}

// TestC331_RandomWords: a peer that writes and says random things all the time. Nothing
// is read or written outside of its own buffers, nothing hangs, nobody else is harmed.
func TestC331_RandomWords(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	l := &rig{place: onFabric(t)}
	l.server.Linger = 100 * time.Millisecond
	ln := l.listen(t)
	defer ln.Close()
	s, c := l.connect(t, ln)
	defer closeBoth(s, c)
	for i := range 60 {
		mode := []stream.Mode{stream.Compatible, stream.Verbena}[i%2]
		p, err := dialRaw(t, l.place.client, ln.Addr().String(), mode, nil)
		if err != nil {
			t.Fatal(err)
		}
		bad, err := ln.AcceptRDMA()
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + rnd.IntN(20) {
			n := rnd.IntN(40)
			word := rnd.Uint32()
			if rnd.IntN(2) == 0 {
				word = word&7<<29 | word>>24
			}
			binary.LittleEndian.PutUint64(p.mr.Bytes(), rnd.Uint64())
			wr := verbs.SendImm(1, word, p.mr.SGE(0, n), 0)
			switch rnd.IntN(3) {
			case 0:
				wr = verbs.WriteImm(1, ib.Remote{Addr: p.them.BufAddr + uint64(rnd.IntN(2000)), RKey: p.them.BufKey, Len: 64}, word, p.mr.SGE(0, n), 0)
			case 1:
				wr = verbs.WriteImm(1, ib.Remote{Addr: p.them.SGLAddr + uint64(rnd.IntN(64)), RKey: p.them.SGLKey, Len: 64}, word, p.mr.SGE(0, n), 0)
			}
			p.qp.PostSend(wr)
		}
		bad.SetDeadline(time.Now().Add(20 * time.Millisecond))
		for range 4 {
			bad.Write(make([]byte, rnd.IntN(5000)))
			bad.Read(make([]byte, 1000))
		}
		p.cm.Close()
		bad.Close()
	}
	writes(t, s, []byte("unharmed"))
	reads(t, c, []byte("unharmed"))
}
