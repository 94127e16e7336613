package rdma_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/stream"
	"github.com/verbena-rdma/verbena/verbs"
)

// Peers without manners that go beyond what they were told; as those of hostile_test.go, on every
// device.

// TestC296_BeyondWindow: a peer that sends on and on, whatever room it was told of, and takes
// notice of nothing that it is told later. Sooner or later it sends what it may not.
func TestC296_BeyondWindow(t *testing.T) {
	together(t)
	for mode, says := range map[stream.Mode]string{
		stream.Compatible: "more messages than it had credits for",
		stream.Verbena:    "more messages than receives that it was told of",
	} {
		t.Run(mode.String(), func(t *testing.T) {
			besides(t, mode, nil, func(l *rig, p *rawPeer, bad *rdma.Conn) {
				bad.SetLinger(60 * 60)
				n := 0
				p.mr.Bytes()[0] = 'x'
				send := func() {
					wr := verbs.SendImm(1, 12, p.mr.SGE(0, 1), 0)
					if mode == stream.Compatible {
						wr = verbs.WriteImm(1, ib.Remote{Addr: p.them.BufAddr + uint64(n), RKey: p.them.BufKey, Len: 1}, 1, p.mr.SGE(0, 1), 0)
					}
					p.post(wr)
					n++
				}
				for range 40 { // before anything is read
					send()
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					for p.failed == nil {
						p.await(39)
						send()
					}
				}()
				bad.SetDeadline(time.Now().Add(l.of(20*time.Second, 2*time.Minute)))
				got, err := io.ReadAll(bad)
				protocolError(t, "Read", err, says)
				_, err = bad.Write([]byte("x"))
				protocolError(t, "Write", err, says)
				bad.Close()
				<-done
				if len(got) > n || !bytes.Equal(got, bytes.Repeat([]byte("x"), len(got))) {
					t.Errorf("%d bytes were read, %d sent, or others than these", len(got), n)
				}
			})
		})
	}
}

// TestC296_WrongEntry: a peer that puts buffers of its choice into our table. What it says
// cannot be seen to be wrong; the first write there ends the connection, and touches nothing.
func TestC296_WrongEntry(t *testing.T) {
	together(t)
	for name, entry := range map[string]func(p *rawPeer) ib.Remote{
		"key of nothing": func(p *rawPeer) ib.Remote { r := p.mr.Remote(0, 4096); r.RKey ^= 0x55; return r },
		"outside":        func(p *rawPeer) ib.Remote { r := p.mr.Remote(0, 4096); r.Addr += 1 << 16; return r },
		"our own ring":   func(p *rawPeer) ib.Remote { return ib.Remote{Addr: p.them.BufAddr, RKey: p.them.BufKey, Len: 4096} },
	} {
		t.Run(name, func(t *testing.T) {
			besides(t, stream.Compatible, nil, func(l *rig, p *rawPeer, bad *rdma.Conn) {
				const at = 1 << 15
				e, b := entry(p), p.mr.Bytes()[at:]
				binary.LittleEndian.PutUint64(b, e.Addr)
				binary.LittleEndian.PutUint32(b[8:], uint32(e.RKey))
				binary.LittleEndian.PutUint32(b[12:], e.Len)
				p.post(verbs.WriteImm(1, ib.Remote{Addr: p.them.SGLAddr + 16, RKey: p.them.SGLKey, Len: 16}, 4<<29|8, p.mr.SGE(at, 16), 0))
				if p.await(0); p.failed != nil {
					p.t.Fatal(p.failed)
				}
				writes(t, bad, pattern(5000, 3)) // the buffer of the hello takes 4096
				bad.SetDeadline(time.Now().Add(l.of(20*time.Second, 2*time.Minute)))
				n, err := bad.Read(make([]byte, 1))
				if n != 0 || !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("Read: %d, %v", n, err)
				}
				_, err = bad.Write([]byte("x"))
				isErr(t, "Write", err, syscall.ECONNRESET)
				bad.Close()
			})
		})
	}
}

// TestC296_AfterShutdown: what a peer must not do it must not do behind the end of its stream
// either.
func TestC296_AfterShutdown(t *testing.T) {
	together(t)
	for _, x := range []struct {
		mode  stream.Mode
		words []uint32 // the end, and what comes then
		says  string
	}{
		{stream.Compatible, []uint32{7<<29 | 2, 3 << 29}, "reserved operation"},
		{stream.Compatible, []uint32{7<<29 | 2, 4<<29 | 0x100, 4<<29 | 1}, "limit of messages ran backwards"},
		{stream.Verbena, []uint32{6<<28 | 12, 6<<28 | 12}, "second FIN"},
		{stream.Verbena, []uint32{6<<28 | 12, 0<<28 | 12}, "DATA after FIN"},
	} {
		t.Run(x.mode.String()+"/"+x.says, func(t *testing.T) {
			besides(t, x.mode, nil, func(l *rig, p *rawPeer, bad *rdma.Conn) {
				bad.SetLinger(60 * 60)
				for _, w := range x.words {
					if x.mode == stream.Verbena { // with a count of bytes
						p.post(verbs.SendImm(1, w, p.mr.SGE(0, 8), 0))
					} else {
						p.post(verbs.WriteImm(1, ib.Remote{}, w, verbs.SGE{}, 0))
					}
				}
				bad.SetDeadline(time.Now().Add(l.of(20*time.Second, 2*time.Minute)))
				_, err := bad.Write(make([]byte, 2<<20)) // more than the peer gives credits for
				protocolError(t, "Write", err, x.says)
				if n, err := bad.Read(make([]byte, 1)); n != 0 || err != io.EOF {
					t.Errorf("Read: %d, %v: the stream had ended", n, err)
				}
				bad.Close()
			})
		})
	}
}

// TestC331_Overwrites: a peer that writes over all that it may write again and again while what it
// has sent is read. The bytes may be any, but there are as many of them as it said.
func TestC331_Overwrites(t *testing.T) {
	besides(t, stream.Compatible, nil, func(l *rig, p *rawPeer, bad *rdma.Conn) {
		const from, n = 1 << 15, 40
		for i := range p.mr.Bytes()[from:] {
			p.mr.Bytes()[from+i] = 0xFF // an entry of this is wrong in every way
		}
		all := ib.Remote{Addr: p.them.BufAddr, RKey: p.them.BufKey, Len: uint32(p.ring())}
		type result struct {
			n   int
			err error
		}
		read := make(chan result, 1)
		bad.SetDeadline(time.Now().Add(l.of(20*time.Second, 2*time.Minute)))
		go func() {
			b, err := io.ReadAll(bad)
			read <- result{len(b), err}
		}()
		for i := range 100 { // as many as it may, into the buffer that it was told of
			at := all
			at.Addr += uint64(i * n)
			p.post(verbs.Write(1, all, p.mr.SGE(from, int(all.Len)), 0), verbs.WriteImm(1, at, n, p.mr.SGE(0, n), 0))
			p.await(8)
		}
		p.post(verbs.WriteImm(1, ib.Remote{}, 7<<29|2, verbs.SGE{}, 0))
		if p.await(0); p.failed != nil {
			p.t.Fatal(p.failed)
		}
		if r := <-read; r.n != 100*n || r.err != nil {
			t.Errorf("%d bytes and %v, want %d and the end", r.n, r.err, 100*n)
		}
		writes(t, bad, pattern(1000, 5)) // where it goes the hello said, not the table
		for got := uint32(0); got < 1000; {
			wc, err := p.cq.Next(p.t.Context())
			if err == nil {
				err = wc.Err()
			}
			if err != nil {
				p.t.Fatal(err)
			}
			if wc.Opcode == ib.WCRecvWriteImm && wc.Imm>>29 == 0 {
				got += wc.ByteLen
			}
		}
		if !bytes.Equal(p.mr.Bytes()[4096:][:1000], pattern(1000, 5)) {
			t.Error("what was written is not what has come")
		}
		p.cm.Close()
		bad.Close()
	})
}
