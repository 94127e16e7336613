package rdma_test

import (
	"encoding/binary"
	"io"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/stream"
	"github.com/verbena-rdma/verbena/verbs"
)

// rsender writes to a connection's buffers as a C program does, one behind the other.
type rsender struct {
	*rawPeer
	addr uint64
	key  ib.RKey
	left uint32
	slot uint32
}

func newRsender(p *rawPeer) *rsender {
	return &rsender{p, p.them.BufAddr, p.them.BufKey, p.them.BufLen, 0}
}

// send writes b, which fits the buffer that is filled now, and at most 32 KiB.
func (r *rsender) send(b []byte) {
	r.t.Helper()
	const from = 1 << 15
	copy(r.mr.Bytes()[from:], b)
	n := uint32(len(b))
	r.say(verbs.WriteImm(1, ib.Remote{Addr: r.addr, RKey: r.key, Len: n}, n, r.mr.SGE(from, len(b)), 0))
	r.addr += uint64(n)
	if r.left -= n; r.left == 0 {
		r.slot = (r.slot + 1) % 2
		e := r.mr.Bytes()[16*r.slot:]
		r.addr, r.key, r.left = binary.LittleEndian.Uint64(e), ib.RKey(binary.LittleEndian.Uint32(e[8:])), binary.LittleEndian.Uint32(e[12:])
	}
}

// fill uses up the buffer that is filled now.
func (r *rsender) fill() {
	r.t.Helper()
	for done := false; !done; {
		n := min(r.left, 1<<15)
		done = n == r.left
		r.send(make([]byte, n))
	}
}

func (r *rsender) shutdown() {
	r.t.Helper()
	r.say(verbs.WriteImm(1, ib.Remote{}, 7<<29|2, verbs.SGE{}, 0))
}

// say waits for the message to arrive, and for what it makes the connection say.
func (r *rsender) say(wr verbs.SendWR) {
	r.t.Helper()
	if err := r.qp.PostSend(wr); err != nil {
		r.t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	if err := r.qp.Err(); err != nil {
		r.t.Fatal(err)
	}
}

// TestTrap09_BufferOfTheEnd: what C sends after its SHUTDOWN is thrown away, and fills the
// buffer in which its last data still lie: that is neither given out again nor given back
// before they are read.
func TestTrap09_BufferOfTheEnd(t *testing.T) {
	t.Run("reuse", func(t *testing.T) {
		besides(t, stream.Compatible, nil, func(_ *rig, p *rawPeer, bad *rdma.Conn) {
			r := newRsender(p)
			r.send([]byte("abc"))
			r.shutdown()
			for range 8 {
				r.fill()
			}
			if got, err := io.ReadAll(bad); string(got) != "abc" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			p.cm.Close()
			bad.Close()
		})
	})
	t.Run("return", func(t *testing.T) {
		besides(t, stream.Compatible, nil, func(_ *rig, p *rawPeer, bad *rdma.Conn) {
			r := newRsender(p)
			want := pattern(4*4096+3, 5)
			for i := range 4 {
				r.send(want[4096*i:][:4096])
			}
			if r.left != 64<<10 {
				t.Fatalf("a buffer of %d bytes after those of the hello", r.left)
			}
			r.send(want[4*4096:])
			time.Sleep(2 * time.Second) // what was lent goes back when it is not used any more
			r.shutdown()
			r.fill()
			r.fill()
			if got, err := io.ReadAll(bad); string(got) != string(want) || err != nil {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			p.cm.Close()
			bad.Close()
		})
	})
}
