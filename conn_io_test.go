package rdma

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/stream"
)

// TestReadWithoutMemory: a machine that names memory which is not there ends the connection:
// a read must not look for ever, with the lock held.
func TestReadWithoutMemory(t *testing.T) {
	h := stream.Hello{Flags: stream.FlagIOMap, Credits: 8, SGLAddr: 1 << 20, SGLKey: 1, SGLLen: 2, BufAddr: 1 << 21, BufKey: 2, BufLen: 512}
	e, err := stream.New(stream.Config{Mode: stream.Compatible, Local: &h, Peer: &h, SendQueue: 16, RecvQueue: 16,
		Recv: stream.RecvMemory{Size: 512, Count: 2, Addr: h.BufAddr, RKey: h.BufKey}, Table: make([]byte, stream.TableLen(2, 0))})
	if err != nil {
		t.Fatal(err)
	}
	c := &Conn{cfg: &Config{}, hub: &hub{}, e: e, failed: true}
	e.Received(0, stream.Arrival{Opcode: ib.WCRecvWriteImm, HasImm: true, Imm: 5, Len: 5})
	done := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 10))
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, syscall.ECONNRESET) || !errors.Is(err, errMemory) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Read does not return")
	}
	if !c.over {
		t.Error("the connection goes on")
	}
}

// TestTruncatedIsBoth: a cut stream is ECONNRESET, also for who asks for the errno, and
// io.ErrUnexpectedEOF; and no time-out.
func TestTruncatedIsBoth(t *testing.T) {
	c := &Conn{local: Addr{}, remote: Addr{}}
	err := c.fail("read", ended(stream.ErrReset))
	var errno syscall.Errno
	var ne net.Error
	switch {
	case !errors.Is(err, ErrTruncated), !errors.Is(err, syscall.ECONNRESET), !errors.Is(err, io.ErrUnexpectedEOF):
		t.Errorf("%v is not all that it should be", err)
	case !errors.As(err, &errno) || errno != syscall.ECONNRESET:
		t.Errorf("%v has the errno %v", err, errno)
	case !errors.As(err, &ne) || ne.Timeout(), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		t.Errorf("%v is what it should not be", err)
	}
}
