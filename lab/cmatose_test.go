package lab_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibverbs"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// cmatose speaks the protocol of rdma-core's ucmatose (man page ucmatose(1)): several
// connections at once; on each, the passive side sends count messages of size bytes,
// then the active side as many; the passive side disconnects.
type cmatose struct {
	p                  verbs.Provider
	conns, count, size int

	cq   *verbs.CQ // of all connections
	mr   *verbs.MR
	pd   *verbs.PD
	next map[queue]uint64
	got  map[ib.WCOpcode]int
	todo []io.Closer
}

// queue is one direction of a connection.
type queue struct {
	qp *verbs.QP
	op ib.WCOpcode
}

// make makes what the connections share, on the first one's device.
func (c *cmatose) make(d *verbs.Device) error {
	if c.pd != nil {
		return nil
	}
	c.next, c.got = map[queue]uint64{}, map[ib.WCOpcode]int{}
	var err error
	if c.pd, err = d.AllocPD(); err != nil {
		return err
	}
	c.todo = append(c.todo, c.pd)
	if c.cq, err = d.CreateCQ(2*c.conns*max(c.count, 1), nil); err != nil {
		return err
	}
	c.todo = append(c.todo, c.cq)
	// ucmatose does not say what it sends: all messages share the memory.
	if c.mr, err = c.pd.Alloc(max(c.size, 1), ib.LocalWrite); err != nil {
		return err
	}
	c.todo = append(c.todo, c.mr)
	return nil
}

// prepare makes the queue pair of a connection, with all receives posted.
func (c *cmatose) prepare(d *verbs.Device, create func(*verbs.PD, verbs.QPConfig) (*verbs.QP, error)) error {
	if err := c.make(d); err != nil {
		return err
	}
	n := max(c.count, 1)
	qp, err := create(c.pd, verbs.QPConfig{SendCQ: c.cq, MaxSendWR: n, MaxRecvWR: n})
	if err != nil {
		return err
	}
	for i := range c.count {
		if err := qp.PostRecv(verbs.Recv(uint64(i), c.mr.SGE(0, c.size))); err != nil {
			return err
		}
	}
	return nil
}

// serve is the passive side. It calls ready when it listens.
func (c *cmatose) serve(ctx context.Context, addr string, ready func()) error {
	l, err := cm.Listen(c.p, net.JoinHostPort(addr, "7471"), nil)
	if err != nil {
		return err
	}
	defer l.Close()
	defer c.close()
	ready()
	var conns []*cm.Conn
	for range c.conns {
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		defer r.Close()
		if err := c.prepare(r.Device(), r.CreateQP); err != nil {
			return err
		}
		conn, err := r.Accept(ctx, &cm.ConnParam{NoReceives: c.count == 0})
		if err != nil {
			return err
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	if err := c.send(ctx, conns); err != nil {
		return err
	}
	return c.receive(ctx)
}

// connect is the active side; it ends when the passive one has disconnected.
func (c *cmatose) connect(ctx context.Context, addr string) error {
	defer c.close()
	var conns []*cm.Conn
	for range c.conns {
		r, err := cm.Resolve(ctx, c.p, net.JoinHostPort(addr, "7471"), nil)
		if err != nil {
			return err
		}
		defer r.Close()
		if err := c.prepare(r.Device(), r.CreateQP); err != nil {
			return err
		}
		conn, err := r.Connect(ctx, &cm.ConnParam{NoReceives: c.count == 0})
		if err != nil {
			return err
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	if err := c.receive(ctx); err != nil {
		return err
	}
	// The peer disconnects when it has received all, be our last completions in or not:
	// those that are flushed by that were sent. What it got is its to say.
	if err := c.send(ctx, conns); err != nil && !errors.Is(err, ib.ErrWRFlush) {
		return err
	}
	for _, conn := range conns {
		select {
		case <-conn.Done():
		case <-ctx.Done():
			return fmt.Errorf("the peer does not disconnect: %w", ctx.Err())
		}
		if err := conn.Err(); !errors.Is(err, io.EOF) {
			return fmt.Errorf("the connection ended with %w, not with the peer's disconnect", err)
		}
	}
	return nil
}

func (c *cmatose) send(ctx context.Context, conns []*cm.Conn) error {
	for _, conn := range conns {
		for i := range c.count {
			if err := conn.QP().PostSend(verbs.Send(uint64(i), c.mr.SGE(0, c.size), ib.Signaled)); err != nil {
				return err
			}
		}
	}
	return c.completions(ctx, ib.WCSend)
}

func (c *cmatose) receive(ctx context.Context) error { return c.completions(ctx, ib.WCRecv) }

// completions waits for all of one direction. They come in order on each connection; those
// of the other direction may be among them, as an acknowledgement can be late.
func (c *cmatose) completions(ctx context.Context, op ib.WCOpcode) error {
	for c.got[op] < c.conns*c.count {
		w, err := c.cq.Next(ctx)
		if err != nil {
			return err
		}
		if err := w.Err(); err != nil {
			return fmt.Errorf("%v %d: %w", w.Opcode, w.ID, err)
		}
		k := queue{w.QP, w.Opcode}
		if w.ID != c.next[k] || w.Opcode == ib.WCRecv && int(w.ByteLen) != c.size {
			return fmt.Errorf("%v %d of %d bytes, want number %d and %d bytes", w.Opcode, w.ID, w.ByteLen, c.next[k], c.size)
		}
		c.next[k]++
		c.got[w.Opcode]++
	}
	return nil
}

func (c *cmatose) close() {
	for _, x := range c.todo {
		x.Close()
	}
	c.todo, c.pd = nil, nil
}

// TestCmatose: both sides of the program understand each other.
func TestCmatose(t *testing.T) {
	t.Parallel()
	rdmatest.CheckLeaks(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := softroce.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, count := range []int{0, 10} {
		server := &cmatose{p: p, conns: 3, count: count, size: 1000}
		client := *server
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- server.serve(ctx, "127.0.0.1", func() { close(ready) }) }()
		select {
		case <-ready:
		case err := <-done:
			t.Fatal(err)
		}
		if err := client.connect(ctx, "127.0.0.1"); err != nil {
			t.Errorf("client: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("server: %v", err)
		}
	}
}

// TestGuestUcmatose: rdma-core's ucmatose against our side of its protocol, both on the
// kernel's device.
func TestGuestUcmatose(t *testing.T) {
	guest := inGuest(t)
	p, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	ucmatose(t, p, guest, guest)
}

// TestHostUcmatose: ucmatose on the kernel's device, our side on the embedded one.
func TestHostUcmatose(t *testing.T) {
	host, guest := onHost(t)
	p, err := softroce.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ucmatose(t, p, host, guest)
}

func ucmatose(t *testing.T, p verbs.Provider, ours, theirs *place) {
	const conns = 3
	for _, f := range families {
		for _, k := range []struct{ count, size int }{{10, 100}, {25, 9000}, {0, 100}} {
			args := []string{"ucmatose", "-c", fmt.Sprint(conns), "-C", fmt.Sprint(k.count), "-S", fmt.Sprint(k.size), "-f", "ip"}
			name := fmt.Sprintf("%s/%dx%d", f.name, k.count, k.size)
			t.Run("UcmatoseServes/"+name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
				defer cancel()
				s := theirs.start(ctx, t, append(args, "-b", f.of(theirs))...)
				for {
					c := &cmatose{p: p, conns: conns, count: k.count, size: k.size}
					err := c.connect(ctx, f.of(theirs))
					if err == nil {
						break
					}
					select {
					case e := <-s.done:
						t.Fatalf("ucmatose ended: %v\n%s\nclient: %v", e, s.out.String(), err)
					case <-ctx.Done():
						t.Fatalf("no connection: %v\n%s", err, s.out.String())
					case <-time.After(100 * time.Millisecond): // until it listens
					}
					if refused := (*cm.RejectError)(nil); !errors.As(err, &refused) {
						t.Fatalf("client: %v\n%s", err, s.out.String())
					}
				}
				ended(t, s)
			})
			t.Run("UcmatoseConnects/"+name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
				defer cancel()
				s := &cmatose{p: p, conns: conns, count: k.count, size: k.size}
				ready, done := make(chan struct{}), make(chan error, 1)
				go func() { done <- s.serve(ctx, f.of(ours), func() { close(ready) }) }()
				select {
				case <-ready:
				case err := <-done:
					t.Fatal(err)
				}
				c := theirs.start(ctx, t, append(args, "-s", f.of(ours))...)
				ended(t, c)
				if err := <-done; err != nil {
					t.Errorf("server: %v\n%s", err, c.out.String())
				}
			})
		}
	}
}

// ended waits for a ucmatose, which must be content.
func ended(t *testing.T, x *program) {
	t.Helper()
	err := <-x.done
	if out := x.out.String(); err != nil || !strings.Contains(out, "return status 0") {
		t.Errorf("%s: %v\n%s", x.name, err, out)
	}
}
