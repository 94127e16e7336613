package lab_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
)

// riostream is our side of the exchange of rdma-core's riostream (man page riostream(1))
// with the options -I, -C, -S and -T v: each side offers the other a buffer of size bytes
// under the offset 0, and says so with 16 bytes, the client first; then, iterations times,
// the client writes to the other's buffer count times, and then the server. Nothing tells
// of a write: the last byte of the last of them counts, for both sides together, and the
// other side looks at it until it does. The bytes before it are one sequence that counts,
// for each side.
type riostream struct {
	iterations, count, size int
	active                  bool

	sent, got, mark byte
}

func (r *riostream) run(ctx context.Context, c *rdma.Conn) error {
	mr, err := c.PD().Alloc((r.size+3)&^3, ib.LocalWrite|ib.RemoteWrite)
	if err != nil {
		return err
	}
	defer mr.Close()
	mr.Bytes()[r.size-1] = 0xff // no mark
	if _, err := c.Map(mr, 0); err != nil {
		return err
	}
	defer c.Unmap(mr)
	if err := r.sync(c); err != nil {
		return fmt.Errorf("at the beginning: %w", err)
	}
	b := make([]byte, r.size)
	for range r.iterations {
		for _, send := range []bool{r.active, !r.active} {
			if send {
				b[r.size-1] = r.mark - 1 // none until the last of them
				err = r.send(c, b)
			} else {
				err = r.receive(ctx, mr, b)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *riostream) sync(c io.ReadWriter) error {
	b := make([]byte, rstreamSync)
	for _, send := range []bool{r.active, !r.active} {
		var err error
		if send {
			_, err = c.Write(b)
		} else {
			_, err = io.ReadFull(c, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *riostream) send(c *rdma.Conn, b []byte) error {
	for range r.count - 1 { // whatever there is
		if n, err := c.MapWrite(b, 0); err != nil {
			return fmt.Errorf("after %d of %d bytes: %w", n, len(b), err)
		}
	}
	for i := range r.size - 1 {
		b[i] = r.sent
		r.sent++
	}
	b[r.size-1] = r.mark
	r.mark++
	n, err := c.MapWrite(b, 0)
	if err != nil {
		err = fmt.Errorf("after %d of %d bytes: %w", n, len(b), err)
	}
	return err
}

// receive looks at the last byte until the mark is there.
func (r *riostream) receive(ctx context.Context, mr *verbs.MR, b []byte) error {
	for last := r.size - 1; lookAt(mr.Bytes(), last) != r.mark; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("the last byte is %#02x, and never %#02x: %w", lookAt(mr.Bytes(), last), r.mark, err)
		}
		time.Sleep(20 * time.Microsecond) // not to take the processor of who writes
	}
	r.mark++
	copy(b, mr.Bytes())
	for i := range r.size - 1 {
		if b[i] != r.got {
			return fmt.Errorf("byte %d is %#02x, not %#02x", i, b[i], r.got)
		}
		r.got++
	}
	return nil
}

// lookAt gives a byte of memory that a device writes. Words are looked at, as package
// sync/atomic has no bytes.
func lookAt(b []byte, i int) byte {
	var w [4]byte
	binary.NativeEndian.PutUint32(w[:], atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[i&^3]))))
	return w[i&3]
}

// TestRiostream: both of our sides understand each other, and find a byte that is wrong.
func TestRiostream(t *testing.T) {
	t.Parallel()
	rdmatest.CheckLeaks(t)
	for _, wrong := range []bool{false, true} {
		s, c := ourPair(t, rdma.Config{Compatible: true, Maps: 1})
		server := riostream{iterations: 3, count: 4, size: 50001}
		client := server
		client.active = true
		if wrong {
			client.sent = 1
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var err error
		var all sync.WaitGroup
		all.Go(func() {
			if err = server.run(ctx, s); err != nil {
				cancel()
			}
			s.Close()
		})
		e := client.run(ctx, c)
		c.Close()
		all.Wait()
		cancel()
		if (err != nil) != wrong || (e != nil) != wrong {
			t.Errorf("wrong bytes %v: server %v, client %v", wrong, err, e)
		}
	}
}

// riostreams are runs of riostream.
func riostreams() []rstreamCase {
	cases := []rstreamCase{
		{name: "Nonblocking", iterations: 20, count: 3, size: 3000},
		{name: "Blocking", iterations: 20, count: 3, size: 3000, args: []string{"-T", "b"}},
		{name: "Poll", iterations: 20, count: 3, size: 3000, args: []string{"-T", "a"}},
		{name: "SmallRing", iterations: 5, count: 3, size: 20000, args: []string{"-B", "4096", "-T", "b"}},
		{name: "OurSmallBuffers", iterations: 5, count: 3, size: 20000, args: []string{"-T", "b"}, cfg: rdma.Config{SendBuf: 4096, RecvBuf: 4096, SendQueue: 16, RecvQueue: 32}},
		{name: "Compatible", iterations: 5, count: 3, size: 20000, cfg: rdma.Config{Compatible: true, Inline: -1}},
	}
	for i, n := range rstreamSizes() {
		if i%3 == 0 && n <= 1<<20 {
			cases = append(cases, rstreamCase{name: strconv.Itoa(n), iterations: 2, count: 2, size: n, args: [][]string{nil, {"-T", "b"}}[i%2]})
		}
	}
	for i := range cases {
		cases[i].cfg.Maps = 1
	}
	return cases
}

// TestGuestC297_Riostream: rdma-core's riostream and our streams, both on the kernel's device.
func TestGuestC297_Riostream(t *testing.T) {
	ours, theirs := guestSockets(t)
	riostreamsMeet(t, ours, theirs)
}

// TestHostC297_Riostream: riostream on the kernel's device, our streams on the embedded one.
func TestHostC297_Riostream(t *testing.T) {
	ours, theirs := hostSockets(t)
	riostreamsMeet(t, ours, theirs)
}

func riostreamsMeet(t *testing.T, ours sockets, theirs *place) {
	part := partOf(t, ours.at, theirs)
	sides(t, "Riostream", func(t *testing.T, way int, serves bool, a family) {
		for i, c := range riostreams() {
			if !part.has(i, way, c.size == 3000) {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				m := meeting{ours: ours, theirs: theirs, of: a.of, serves: serves, cfg: c.cfg, ok: says("custom")}
				m.args = func(addr string) []string {
					return withDefaults(map[string]int{"iomap_size": 1}, c.command("riostream", addr, serves)...)
				}
				m.meet(t, "7471", func(ctx context.Context, s *rdma.Conn) error {
					r := riostream{iterations: c.iterations, count: c.count, size: c.size, active: serves}
					if err := r.run(ctx, s); err != nil {
						return err
					}
					return atEnd(s)
				})
			})
		}
	})
}
