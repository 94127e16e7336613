package main

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// rogue is one end of a connection that does not do what rping does. It lives in the
// test's process, verbena in another.
type rogue struct {
	t    *testing.T
	ctx  context.Context
	pd   *verbs.PD
	cq   *verbs.CQ
	mr   *verbs.MR // 1 KiB for receives, and as much to send from
	qp   *verbs.QP
	conn *cm.Conn
}

const rogueRoom = 1024

// newRogue makes everything but the queue pair, which create makes.
func newRogue(t *testing.T, ctx context.Context, dev *verbs.Device, create func(*verbs.PD, verbs.QPConfig) (*verbs.QP, error)) (r *rogue, err error) {
	r = &rogue{t: t, ctx: ctx}
	if r.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if r.cq, err = dev.CreateCQ(64, nil); err != nil {
		return nil, err
	}
	if r.mr, err = r.pd.Alloc(2*rogueRoom, ib.LocalWrite|ib.RemoteWrite|ib.RemoteRead); err != nil {
		return nil, err
	}
	if r.qp, err = create(r.pd, verbs.QPConfig{SendCQ: r.cq, MaxSendWR: 16, MaxRecvWR: 4}); err != nil {
		return nil, err
	}
	for i := range 4 {
		if err := r.qp.PostRecv(verbs.Recv(uint64(i), r.mr.SGE(i*rogueRoom/4, rogueRoom/4))); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *rogue) close() {
	if r.conn != nil {
		r.conn.Close()
	}
	r.mr.Close()
	r.cq.Close()
	r.pd.Close()
}

// received waits for a message.
func (r *rogue) received() []byte {
	for {
		wc, err := r.cq.Next(r.ctx)
		if err != nil || wc.Err() != nil {
			return nil
		}
		if wc.Opcode.IsRecv() {
			return r.mr.Bytes()[int(wc.ID)*rogueRoom/4:][:wc.ByteLen]
		}
	}
}

// send sends a message. The connection may be gone, which is not for the rogue to mind.
func (r *rogue) send(b []byte) {
	copy(r.mr.Bytes()[rogueRoom:], b)
	_ = r.qp.PostSend(verbs.Send(100, r.mr.SGE(rogueRoom, len(b)), ib.Signaled))
}

// gone waits for the end of the connection.
func (r *rogue) gone() {
	select {
	case <-r.conn.Done():
	case <-r.ctx.Done():
	}
}

func rogueContext(t *testing.T) (context.Context, verbs.Provider) {
	t.Helper()
	p, _, err := rdma.Provider(rdma.Auto)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx, p
}

// rogueServer listens, and lets behave deal with one client after its first message.
func rogueServer(t *testing.T, behave func(*rogue, []byte)) netip.AddrPort {
	t.Helper()
	ctx, p := rogueContext(t)
	l, err := cm.Listen(p, netip.AddrPortFrom(privateAddr(), 0).String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			req, err := l.Accept(ctx)
			if err != nil {
				return err
			}
			if behave == nil {
				return req.Close() // rejects
			}
			r, err := newRogue(t, ctx, req.Device(), req.CreateQP)
			if err != nil {
				return err
			}
			defer r.close()
			if r.conn, err = req.Accept(ctx, nil); err != nil {
				return err
			}
			behave(r, r.received())
			return nil
		}()
	}()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
		l.Close()
	})
	at, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// rogueClient connects and lets behave go on.
func rogueClient(t *testing.T, at netip.AddrPort, behave func(*rogue)) {
	t.Helper()
	ctx, p := rogueContext(t)
	route, err := cm.Resolve(ctx, p, at.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRogue(t, ctx, route.Device(), route.CreateQP)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if r.conn, err = route.Connect(ctx, nil); err != nil {
		t.Fatal(err)
	}
	behave(r)
}

// remote names memory of the rogue.
func (r *rogue) remote(n int) []byte {
	b, err := ib.Remote{Addr: r.mr.Remote(rogueRoom, 0).Addr, RKey: r.mr.RKey(), Len: uint32(n)}.MarshalBinary()
	if err != nil {
		r.t.Error(err)
	}
	return b
}

func TestRogueServer(t *testing.T) {
	t.Parallel()
	for _, k := range []struct {
		name   string
		behave func(*rogue, []byte)
		want   []string
	}{
		{"rejects", nil, []string{"rejected"}},
		{"hangs up", func(*rogue, []byte) {}, []string{"the peer ended the connection before the first exchange"}},
		{"says nothing", func(r *rogue, _ []byte) { r.gone() }, []string{"no answer within 2s before the first exchange"}},
		{"short message", func(r *rogue, _ []byte) { r.send(make([]byte, 5)); r.gone() }, []string{"does not speak rping's protocol", "5 bytes"}},
		{"empty message", func(r *rogue, _ []byte) { r.send(nil); r.gone() }, []string{"does not speak rping's protocol", "0 bytes"}},
		{"long message", func(r *rogue, _ []byte) { r.send(make([]byte, 17)); r.gone() }, []string{"does not speak rping's protocol", "more than 16 bytes"}},
		{"no data", func(r *rogue, _ []byte) {
			r.send(make([]byte, messageLen))
			r.received()
			r.send(make([]byte, messageLen))
			r.gone()
		}, []string{"the data that came back is wrong: byte 0 of 64 is 0x00 instead of 0x72"}},
		{"other data", func(r *rogue, first []byte) {
			var from, to ib.Remote
			if err := from.UnmarshalBinary(first); err != nil {
				r.t.Error(err)
			}
			l := r.mr.SGE(rogueRoom+messageLen, int(from.Len))
			if err := r.qp.PostSend(verbs.Read(101, from, l, ib.Signaled)); err != nil {
				r.t.Error(err)
			}
			r.next()
			r.send(make([]byte, messageLen))
			if err := to.UnmarshalBinary(r.received()); err != nil {
				r.t.Error(err)
			}
			r.mr.Bytes()[rogueRoom+messageLen+40]++
			if err := r.qp.PostSend(verbs.Write(102, to, l, ib.Signaled)); err != nil {
				r.t.Error(err)
			}
			r.send(make([]byte, messageLen))
			r.gone()
		}, []string{"the data that came back is wrong: byte 40 of 64"}},
		{"wrong key", func(r *rogue, first []byte) {
			var from ib.Remote
			if err := from.UnmarshalBinary(first); err != nil {
				r.t.Error(err)
			}
			from.RKey ^= 0x5a5a5a00
			if err := r.qp.PostSend(verbs.Read(101, from, r.mr.SGE(rogueRoom, int(from.Len)), ib.Signaled)); err != nil {
				r.t.Error(err)
			}
			r.gone()
		}, nil},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			at := rogueServer(t, k.behave)
			limit := patience.String()
			if k.name == "says nothing" {
				limit = "2s" // it has to connect within that, too
			}
			ping(t, at, "-timeout", limit).fails(append(k.want, at.String())...)
		})
	}
}

// next waits for a completion of any kind.
func (r *rogue) next() {
	if wc, err := r.cq.Next(r.ctx); err != nil || wc.Err() != nil {
		r.t.Error(err, wc.Err())
	}
}

func TestRogueClient(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server, at := serve(t, "-wait", mode, "-size", "500")
			for _, k := range []struct {
				name   string
				behave func(*rogue)
				want   string
			}{
				{"hangs up", func(*rogue) {}, "0 exchanges in"},
				{"short message", func(r *rogue) { r.send([]byte("hello")); r.gone() }, "does not speak rping's protocol: a message of 5 bytes"},
				{"long message", func(r *rogue) { r.send(make([]byte, 200)); r.gone() }, "does not speak rping's protocol: a message of more than 16 bytes"},
				{"too much", func(r *rogue) { r.send(r.remote(501)); r.gone() }, "wants to exchange 501 bytes"},
				{"far too much", func(r *rogue) { r.send(r.remote(-1)); r.gone() }, "wants to exchange 4294967295 bytes"},
				{"no data", func(r *rogue) { r.send(r.remote(64)); r.gone() }, "its data is not that of rping"},
				{"wrong key", func(r *rogue) {
					b := r.remote(64)
					b[8] ^= 0x5a
					r.send(b)
					r.gone()
				}, "after 0 exchanges"},
			} {
				rogueClient(t, at, k.behave)
				server.expect(k.want)
			}
			checkSummary(t, ping(t, at, "-n", "3").ok(), 3, 64, true)
			server.interrupt()
			server.ok()
		})
	}
}

// TestRogueCM sends garbage to the queue pair of the connection manager.
func TestRogueCM(t *testing.T) {
	t.Parallel()
	server, at := serve(t)
	c, err := net.Dial("udp", netip.AddrPortFrom(at.Addr(), 4791).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	b := make([]byte, 280)
	b[0], b[7] = 0x64, 1 // UD SEND only, to QP1
	for i := range 256 {
		for j := 12; j < len(b); j++ {
			b[j] = byte(i * j)
		}
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	ping(t, at, "-n", "3").ok()
	server.interrupt()
	server.ok()
}
