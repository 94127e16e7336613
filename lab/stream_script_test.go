package lab_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
)

// buildRsocket makes the program of testdata/rsocket.c, which carries out the commands of
// its arguments over rsockets.
func buildRsocket(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("gcc", "-O1", "-Wall", "-Werror", "-o", filepath.Join(dir, "rsocket"), "testdata/rsocket.c", "-lrdmacm")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

// scripted is a meeting with that program.
type scripted struct {
	name     string
	commands []string
	f        func(ctx context.Context, c *rdma.Conn) error
	cfg      rdma.Config
	defaults map[string]int
}

func (x *scripted) meet(t *testing.T, ours sockets, theirs *place, serves bool, a family) {
	const port = "7481"
	m := meeting{ours: ours, theirs: theirs, of: a.of, serves: serves, cfg: x.cfg, ok: says("done")}
	m.args = func(addr string) []string {
		how := "connect"
		if serves {
			how = "listen"
		}
		return withDefaults(x.defaults, append([]string{"rsocket", how, addr, port}, x.commands...)...)
	}
	m.meet(t, port, x.f)
}

// pattern is what the program writes and expects.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(seed + 7*i + i>>8)
	}
	return b
}

// reads reads exactly a pattern, and writes writes one.
func reads(c io.Reader, n, seed int) error {
	b := make([]byte, n)
	if k, err := io.ReadFull(c, b); err != nil {
		return fmt.Errorf("read %d of %d bytes: %w", k, n, err)
	}
	return isPattern(b, seed)
}

func isPattern(b []byte, seed int) error {
	if want := pattern(len(b), seed); !bytes.Equal(b, want) {
		return fmt.Errorf("%d bytes are not pattern %d", len(b), seed)
	}
	return nil
}

func writes(c io.Writer, n, seed int) error {
	_, err := c.Write(pattern(n, seed))
	return err
}

// inOrder does steps until one fails.
func inOrder(steps ...func() error) error {
	for i, f := range steps {
		if err := f(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

// isError gives a step that wants an error.
func isError(f func() error, want error) func() error {
	return func() error {
		if err := f(); !errors.Is(err, want) {
			return fmt.Errorf("%v, want %w", err, want)
		}
		return nil
	}
}

// streamEnds are the ways in which a stream to a C program ends, and what it does in between.
var streamEnds = []scripted{
	{name: "WeCloseWrite", commands: []string{"recv:100:1", "eof", "send:50000:2", "close"}, f: func(_ context.Context, c *rdma.Conn) error {
		return inOrder(func() error { return writes(c, 100, 1) }, c.CloseWrite, func() error { return reads(c, 50000, 2) }, func() error { return atEnd(c) })
	}},
	{name: "ItShutsDown", commands: []string{"send:100:1", "shut:1", "recv:50000:2", "eof", "close"}, f: func(_ context.Context, c *rdma.Conn) error {
		return inOrder(func() error { return reads(c, 100, 1) }, func() error { return atEnd(c) }, func() error { return writes(c, 50000, 2) }, c.CloseWrite)
	}},
	{name: "ItClosesUnread", commands: []string{"send:100:1", "recv:10:2", "close"}, f: func(_ context.Context, c *rdma.Conn) error {
		return inOrder(func() error { return writes(c, 1000, 2) }, func() error { return reads(c, 100, 1) }, func() error { return atEnd(c) })
	}},
	{name: "WeCloseUnread", commands: []string{"send:1000:1", "recv:10:2", "eof", "close"}, f: func(_ context.Context, c *rdma.Conn) error {
		return inOrder(func() error { return reads(c, 10, 1) }, func() error { return writes(c, 10, 2) })
	}},
	{name: "WeReset", commands: []string{"send:100:1", "eof", "close"}, f: func(_ context.Context, c *rdma.Conn) error {
		return inOrder(func() error { return reads(c, 100, 1) }, func() error { return c.SetLinger(0) })
	}},
	{name: "ItDies", commands: []string{"send:100:1", "recv:1:1", "die"}, f: func(_ context.Context, c *rdma.Conn) error {
		return inOrder(func() error { return reads(c, 100, 1) }, func() error { return writes(c, 1, 1) },
			isError(func() error { _, err := c.Read(make([]byte, 1)); return err }, rdma.ErrTruncated))
	}},
	{name: "KeepAlive", commands: []string{"keepalive:1", "send:1:1", "idle:2500", "recv:5000:2", "send:5000:3", "close"}, cfg: rdma.Config{KeepAlive: 300 * time.Millisecond},
		f: func(_ context.Context, c *rdma.Conn) error {
			return inOrder(func() error { return reads(c, 1, 1) }, func() error { return writes(c, 5000, 2) }, func() error { return reads(c, 5000, 3) }, func() error { return atEnd(c) })
		}},
}

// TestGuestC294_StreamEnds: ends of a stream to a C program, on the kernel's device.
func TestGuestC294_StreamEnds(t *testing.T) {
	ours, theirs := guestSockets(t)
	scripts(t, ours, theirs, streamEnds)
}

// TestHostC294_StreamEnds: the same on the embedded device.
func TestHostC294_StreamEnds(t *testing.T) {
	ours, theirs := hostSockets(t)
	scripts(t, ours, theirs, streamEnds)
}

func scripts(t *testing.T, ours sockets, theirs *place, all []scripted) {
	part := partOf(t, ours.at, theirs)
	sides(t, "Program", func(t *testing.T, way int, serves bool, a family) {
		for i, x := range all {
			if part.has(i, way, true) {
				t.Run(x.name, func(t *testing.T) { x.meet(t, ours, theirs, serves, a) })
			}
		}
	})
}

// streamMaps are one-sided writes, in both directions.
var streamMaps = []scripted{
	{name: "WeWrite", defaults: map[string]int{"iomap_size": 4}, cfg: rdma.Config{Maps: 4}, f: writeToMaps,
		commands: []string{"map:0:5000", "map:1048576:300000", "map:-1:777", "tell", "recv:1:1", "check:0:5000:3", "check:1:300000:4", "check:2:777:5",
			"unmap:0", "map:0:3000", "send:1:2", "recv:1:2", "check:3:3000:6", "unmap:1", "unmap:2", "unmap:3", "close"}},
	{name: "ItWrites", defaults: map[string]int{"iomap_size": 2}, cfg: rdma.Config{Maps: 2}, f: offerMaps,
		commands: []string{"recv:1:1", "write:0:5000:3", "write:1048576:300000:4", "write:1048676:50:5", "send:1:1",
			"recv:1:2", "nomap:0", "write:1048576:10:6", "send:1:2",
			"recv:1:3", "write:16:600:7", "send:1:3", "close"}},
	// C loses a credit with each news of a map, so there are few; the stream goes on.
	{name: "FewCredits", defaults: map[string]int{"iomap_size": 100, "sqsize_default": 16, "rqsize_default": 16}, cfg: rdma.Config{Maps: 1}, f: offerTooMany,
		commands: []string{"recv:100000:1", "recv:100000:1", "send:100000:2", "close"}},
}

func writeToMaps(_ context.Context, c *rdma.Conn) error {
	var at [8]byte
	if _, err := io.ReadFull(c, at[:]); err != nil {
		return err
	}
	third := int64(binary.LittleEndian.Uint64(at[:]))
	write := func(n, seed int, offset int64) func() error {
		return func() error { _, err := c.MapWrite(pattern(n, seed), offset); return err }
	}
	return inOrder(write(5000, 3, 0), write(300000, 4, 1<<20), write(777, 5, third),
		isError(write(1, 0, 5000), rdma.ErrNoMap), isError(write(1, 0, 1<<20-1), rdma.ErrNoMap),
		func() error { return writes(c, 1, 1) },
		func() error { return reads(c, 1, 2) },
		write(3000, 6, 0), isError(write(1, 0, 3000), rdma.ErrNoMap), // another map in its place
		func() error { return writes(c, 1, 2) },
		func() error { return atEnd(c) })
}

func offerMaps(_ context.Context, c *rdma.Conn) error {
	memory, err := c.PD().Alloc(400000, ib.LocalWrite|ib.RemoteWrite)
	if err != nil {
		return err
	}
	defer memory.Close()
	small, err := c.PD().Alloc(6000, ib.LocalWrite|ib.RemoteWrite)
	if err != nil {
		return err
	}
	defer small.Close()
	if _, err := c.Map(small, 0); err != nil {
		return err
	}
	if _, err := c.Map(memory, 1<<20); err != nil {
		return err
	}
	if _, err := c.Map(small, 1<<30); !errors.Is(err, syscall.ENOBUFS) {
		return fmt.Errorf("a map more than the peer has room for: %w", err)
	}
	if err := errors.Join(writes(c, 1, 1), reads(c, 1, 1)); err != nil {
		return err
	}
	whole := pattern(300000, 4)
	copy(whole[100:], pattern(50, 5))
	if !bytes.Equal(memory.Bytes()[:300000], whole) {
		return errors.New("the memory at 1<<20 is not what was written")
	}
	if err := isPattern(small.Bytes()[:5000], 3); err != nil {
		return err
	}
	if err := c.Unmap(small); err != nil {
		return err
	}
	if err := errors.Join(writes(c, 1, 2), reads(c, 1, 2), isPattern(memory.Bytes()[:10], 6)); err != nil {
		return err
	}
	if _, err := c.Map(small, 0); err != nil { // again
		return err
	}
	return errors.Join(writes(c, 1, 3), reads(c, 1, 3), isPattern(small.Bytes()[16:616], 7), atEnd(c))
}

func offerTooMany(_ context.Context, c *rdma.Conn) error {
	mr, err := c.PD().Alloc(100, ib.LocalWrite|ib.RemoteWrite)
	if err != nil {
		return err
	}
	defer mr.Close()
	given := 0
	for ; ; given++ {
		if _, err = c.Map(mr, -1); err != nil {
			break
		}
	}
	if !errors.Is(err, syscall.ENOBUFS) || given < 1 || given > 8 {
		return fmt.Errorf("%d maps, then %w", given, err)
	}
	return errors.Join(writes(c, 100000, 1), writes(c, 100000, 1), reads(c, 100000, 2), atEnd(c))
}

// TestGuestC297_Maps: riomap and riowrite of a C program, and Map and MapWrite, on the
// kernel's device.
func TestGuestC297_Maps(t *testing.T) {
	ours, theirs := guestSockets(t)
	scripts(t, ours, theirs, streamMaps)
}

// TestHostC297_Maps: the same on the embedded device.
func TestHostC297_Maps(t *testing.T) {
	ours, theirs := hostSockets(t)
	scripts(t, ours, theirs, streamMaps)
}
