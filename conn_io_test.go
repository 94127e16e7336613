package rdma

import (
	"errors"
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
