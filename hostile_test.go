package rdma_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
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
		{"the other byte order", func(b []byte) []byte {
			for _, f := range [][]byte{b[2:4], b[8:16], b[16:20], b[20:24], b[24:32], b[32:36], b[36:40]} {
				slices.Reverse(f)
			}
			return b
		}},
		{"extension of version 0", func(b []byte) []byte { return append(b[:40], 'V', 'R', 'B', '1', 0, 0, 12, 9, 1, 2, 3, 4, 5, 6, 7, 8) }},
		{"extension without credits", func(b []byte) []byte { return append(b[:40], 'V', 'R', 'B', '1', 1, 0, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8) }},
		{"extension with a size of 2^255", func(b []byte) []byte {
			return append(b[:40], 'V', 'R', 'B', '1', 1, 0, 12, 255, 1, 2, 3, 4, 5, 6, 7, 8)
		}},
	} {
		_, err := dialRaw(t, l.place, ln.Addr().String(), stream.Compatible, x.change)
		var rej *cm.RejectError
		if !errors.As(err, &rej) || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		if text := bytes.Trim(rej.Private, "\x00"); len(text) > 0 {
			t.Errorf("%s: the rejection says %q, and a plain one says nothing", x.name, text)
		}
		n++
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 30 { // whatever it is, nothing breaks
		dialRaw(t, l.place, ln.Addr().String(), stream.Compatible, func(b []byte) []byte {
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

// TestC296_Misbehaving: each offence ends that connection with one clear error, and no
// other. The machine's own test has all of them (internal/stream); these go over the wire.
func TestC296_Misbehaving(t *testing.T) {
	together(t)
	imm := func(words ...uint32) func(*rawPeer) {
		return func(p *rawPeer) {
			for _, w := range words {
				p.post(verbs.SendImm(1, w, verbs.SGE{}, 0))
			}
		}
	}
	// send is a message of Verbena whose acknowledgement and credit are right.
	send := func(kind uint32, body ...byte) func(*rawPeer) {
		return func(p *rawPeer) {
			copy(p.mr.Bytes(), body)
			p.post(verbs.SendImm(1, kind<<28|12, p.mr.SGE(0, len(body)), 0))
		}
	}
	write := func(off uint64, n int, v uint32) func(*rawPeer) {
		return func(p *rawPeer) {
			p.post(verbs.WriteImm(1, ib.Remote{Addr: p.them.BufAddr + off, RKey: p.them.BufKey, Len: 1 << 30}, v, p.mr.SGE(0, n), 0))
		}
	}
	type offence struct {
		name string
		mode stream.Mode
		do   func(*rawPeer)
		want syscall.Errno
		says string
	}
	all := []offence{
		{"unknown kind", stream.Verbena, send(15), syscall.EPROTO, "kind"},
		{"acknowledgement of what was not sent", stream.Verbena, imm(0xFFFFFFFF), syscall.EPROTO, "acknowledgement of what was not sent"},
		{"credit that runs backwards", stream.Verbena, imm(0x00000003), syscall.EPROTO, "credit ran backwards"},
		{"data of nothing", stream.Verbena, send(0), syscall.EPROTO, "DATA of no bytes"},
		{"end of another length", stream.Verbena, send(6, 0, 0, 0, 0, 0, 0, 0, 5), syscall.EPROTO, "another number of bytes"},
		{"close without an end", stream.Verbena, send(7, 0, 0, 0, 0, 0, 0, 0, 0), syscall.EPROTO, ""},
		{"map beyond the table", stream.Verbena, send(8, make([]byte, 28)...), syscall.EPROTO, "beyond the end of the table"},
		{"no word", stream.Verbena, func(p *rawPeer) { p.post(verbs.Send(1, p.mr.SGE(0, 10), 0)) }, syscall.EPROTO, "no SEND with immediate"},
		{"more than fits", stream.Verbena, func(p *rawPeer) { p.post(verbs.SendImm(1, 12, p.mr.SGE(0, 4096), 0)) }, syscall.ECONNRESET, "local length error"},
		{"write somewhere", stream.Verbena, func(p *rawPeer) {
			p.post(verbs.WriteImm(1, ib.Remote{Addr: 0x10000, RKey: 0x1234, Len: 100}, 1, p.mr.SGE(0, 100), 0))
		}, syscall.ECONNRESET, ""},
		{"reserved op 1", stream.Compatible, write(0, 16, 0x20000010), syscall.EPROTO, "reserved operation"},
		{"reserved op 3", stream.Compatible, write(0, 16, 0x60000010), syscall.EPROTO, "reserved operation"},
		{"reserved op 5", stream.Compatible, write(0, 16, 0xA0000010), syscall.EPROTO, "reserved operation"},
		{"value beyond the buffer", stream.Compatible, write(0, 16, 0x1FFFFFFF), syscall.EPROTO, "not that of the message"},
		{"data in a SEND", stream.Compatible, imm(0x10000000), syscall.EPROTO, "a SEND"},
		{"more than the buffer", stream.Compatible, write(0, 5000, 5000), syscall.EPROTO, "beyond the end of the buffer"},
		{"beyond the ring", stream.Compatible, write(1<<24, 16, 16), syscall.ECONNRESET, ""},
		{"over the end of the ring", stream.Compatible, func(p *rawPeer) { write(p.ring()-8, 5000, 5000)(p) }, syscall.ECONNRESET, ""},
		{"entry that is empty", stream.Compatible, func(p *rawPeer) {
			p.post(verbs.WriteImm(1, ib.Remote{Addr: p.them.SGLAddr + 16, RKey: p.them.SGLKey, Len: 16}, 0x80000008, p.mr.SGE(1<<15, 16), 0))
		}, syscall.EPROTO, "empty or wraps"},
		{"limit that runs backwards", stream.Compatible, imm(0x80000100, 0x80000001), syscall.EPROTO, "limit of messages ran backwards"},
		{"limit that jumps", stream.Compatible, imm(0x80007000, 0x8000E000, 0x80000007), syscall.EPROTO, "more credits than sequence numbers"},
	}
	if onKernel(t) == nil { // in real time it may have been told of more: see TestC296_BeyondWindow
		all = append(all, offence{"more messages than receives", stream.Verbena, func(p *rawPeer) {
			for range 40 {
				p.post(verbs.SendImm(1, 12, p.mr.SGE(0, 1), 0))
			}
		}, syscall.EPROTO, "more messages than receives that it was told of"})
	}
	for _, x := range all {
		t.Run(x.mode.String()+"/"+x.name, func(t *testing.T) {
			besides(t, x.mode, nil, func(l *rig, p *rawPeer, bad *rdma.Conn) {
				bad.SetLinger(60 * 60)
				says := x.says
				if says == "local length error" && l.kernelServes() {
					says = "local queue pair operation error" // Soft-RoCE's status: C-119
				}
				x.do(p)
				bad.SetDeadline(time.Now().Add(l.of(20*time.Second, 2*time.Minute)))
				got, err := io.ReadAll(bad)
				if !errors.Is(err, x.want) || !strings.Contains(err.Error(), says) || len(got) > 40 {
					t.Errorf("%d bytes, then %v, want %v with %q", len(got), err, x.want, says)
				}
				if n, err := bad.Write([]byte("x")); n != 0 || !errors.Is(err, x.want) {
					t.Errorf("Write: %d, %v", n, err)
				}
				start := time.Now()
				if err := bad.Close(); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took > l.of(2*time.Second, 5*time.Minute) {
					t.Errorf("Close took %v, as if something could still be delivered", took)
				}
			})
		})
	}
}

// TestC296_Silent: a peer that never returns credits and never reads stops the writer, whose
// deadline and Close are kept.
func TestC296_Silent(t *testing.T) {
	together(t)
	for _, mode := range []stream.Mode{stream.Compatible, stream.Verbena} {
		t.Run(mode.String(), func(t *testing.T) {
			besides(t, mode, nil, func(l *rig, p *rawPeer, bad *rdma.Conn) {
				bad.SetWriteDeadline(time.Now().Add(l.of(time.Second, 10*time.Second)))
				n, err := bad.Write(make([]byte, 2<<20))
				if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || n > 600<<10 { // the default SendBuf
					t.Errorf("%d bytes, %v", n, err)
				}
				n, err = bad.Write(make([]byte, 10))
				if n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("then %d bytes, %v", n, err)
				}
				start := time.Now()
				if err := bad.Close(); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took < 5*time.Second || took > l.of(7*time.Second, 5*time.Minute) {
					t.Errorf("Close took %v, with a Linger of 5 s", took)
				}
			})
		})
	}
}

// TestC296_CloseInTheMiddle: a peer that ends the connection without saying that its stream
// ends: what it had sent, and then a reset, not an end of file.
func TestC296_CloseInTheMiddle(t *testing.T) {
	together(t)
	for _, mode := range []stream.Mode{stream.Compatible, stream.Verbena} {
		t.Run(mode.String(), func(t *testing.T) {
			besides(t, mode, nil, func(l *rig, p *rawPeer, bad *rdma.Conn) {
				copy(p.mr.Bytes(), "half")
				wr := verbs.SendImm(1, 12, p.mr.SGE(0, 4), 0)
				if mode == stream.Compatible {
					wr = verbs.WriteImm(1, ib.Remote{Addr: p.them.BufAddr, RKey: p.them.BufKey, Len: 64}, 4, p.mr.SGE(0, 4), 0)
				}
				if p.post(wr); p.failed != nil {
					p.t.Fatal(p.failed)
				}
				blocked := make(chan error, 1)
				go func() {
					_, err := bad.Write(make([]byte, 2<<20))
					blocked <- err
				}()
				if p.await(0); p.failed != nil {
					p.t.Fatal(p.failed)
				}
				l.comes(t, "Write waits", asleep(bad, 1))
				p.cm.Close()
				got, err := io.ReadAll(bad)
				if string(got) != "half" || !errors.Is(err, rdma.ErrTruncated) || !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%q, %v", got, err)
				}
				isErr(t, "Write", <-blocked, syscall.ECONNRESET)
				start := time.Now()
				bad.Close()
				if took := time.Since(start); took > l.of(2*time.Second, 5*time.Minute) {
					t.Errorf("Close took %v", took)
				}
			})
		})
	}
}

// TestC295_WrongKeys: a hello whose keys or addresses open nothing. It cannot be seen to be
// wrong; the first write ends the connection.
func TestC295_WrongKeys(t *testing.T) {
	together(t)
	for name, change := range map[string]func([]byte) []byte{
		"buffer key":     func(b []byte) []byte { b[32] ^= 0x55; return b },
		"buffer address": func(b []byte) []byte { b[28] ^= 0x55; return b },
		"table key":      func(b []byte) []byte { b[16] ^= 0x55; return b },
	} {
		t.Run(name, func(t *testing.T) {
			besides(t, stream.Compatible, change, func(l *rig, p *rawPeer, bad *rdma.Conn) {
				bad.Write([]byte("to nowhere"))
				bad.SetDeadline(time.Now().Add(20 * time.Second))
				n, err := bad.Read(make([]byte, 1))
				if n != 0 || !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%d, %v", n, err)
				}
				_, err = bad.Write([]byte("x"))
				isErr(t, "Write", err, syscall.ECONNRESET)
				bad.Close()
			})
		})
	}
}

// TestC331_RandomWords: a peer that writes and says random things all the time. Nothing
// is read or written outside of its own buffers, nothing hangs, nobody else is harmed.
func TestC331_RandomWords(t *testing.T) {
	together(t)
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	l := &rig{place: onKernel(t)}
	if l.place == nil {
		l.place = onFabric(t)
	}
	l.server.Linger = 100 * time.Millisecond
	ln := l.listen(t)
	defer ln.Close()
	s, c := l.connect(t, ln)
	defer closeBoth(s, c)
	for i := range l.times(60, 16) {
		mode := []stream.Mode{stream.Compatible, stream.Verbena}[i%2]
		p, err := dialRaw(t, l.place, ln.Addr().String(), mode, nil)
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
