package rdma_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
)

// TestC263_Zero: nothing is read and written at once, unless the connection is closed.
func TestC263_Zero(t *testing.T) {
	pairs(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		for _, f := range []func([]byte) (int, error){c.Read, c.Write, c.TryRead, c.TryWrite} {
			if n, err := f(nil); n != 0 || err != nil {
				t.Error(n, err)
			}
		}
		s.CloseWrite()
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Error(n, err)
		}
		if n, err := c.Read(nil); n != 0 || err != nil {
			t.Error("after the end:", n, err)
		}
		if _, err := c.TryRead(make([]byte, 1)); err != io.EOF {
			t.Error(err)
		}
		closeBoth(s, c)
		for _, f := range []func([]byte) (int, error){c.Read, c.Write, c.TryRead, c.TryWrite} {
			_, err := f(nil)
			isErr(t, "closed", err, net.ErrClosed)
		}
	})
}

// TestC264_Close: everything fails afterwards, and what blocks is woken.
func TestC264_Close(t *testing.T) {
	pairs(t, func(t *testing.T, l *rig, s, c *rdma.Conn) {
		errs := make(chan error, 2)
		go func() { _, err := c.Read(make([]byte, 1)); errs <- err }()
		go func() {
			for {
				if _, err := c.Write(make([]byte, 64<<10)); err != nil {
					errs <- err
					return
				}
			}
		}()
		l.comes(t, "both calls wait", asleep(c, 2))
		closed := make(chan struct{})
		go func() { s.Close(); close(closed) }()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		<-closed
		for range 2 {
			if err := <-errs; !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a call that blocked: %v", err)
			}
		}
		isErr(t, "second Close", c.Close(), net.ErrClosed)
		isErr(t, "CloseWrite", c.CloseWrite(), net.ErrClosed)
		isErr(t, "CloseRead", c.CloseRead(), net.ErrClosed)
		isErr(t, "SetDeadline", c.SetDeadline(time.Time{}), net.ErrClosed)
		isErr(t, "SetLinger", c.SetLinger(1), net.ErrClosed)
		isErr(t, "SetNoDelay", c.SetNoDelay(true), net.ErrClosed)
		_, err := c.WriteBuffers(&net.Buffers{[]byte("x")})
		isErr(t, "WriteBuffers", err, net.ErrClosed)
		if c.LocalAddr() == nil || c.RemoteAddr() == nil || c.Transport().Kind != "rdma" {
			t.Error("what a connection was is forgotten")
		}
	})
}

// A blocked Read and a blocked Write fail with net.ErrClosed when their own end is closed.
func TestC264_CloseUnblocks(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		l.client.Linger = -1
		s, c := l.pair(t)
		defer s.Close()
		rerr, werr := make(chan error, 1), make(chan error, 1)
		go func() { _, err := c.Read(make([]byte, 1)); rerr <- err }()
		go func() {
			var err error
			for err == nil {
				_, err = c.Write(make([]byte, 64<<10))
			}
			werr <- err
		}()
		l.comes(t, "both calls wait", asleep(c, 2))
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		isErr(t, "Read", <-rerr, net.ErrClosed)
		isErr(t, "Write", <-werr, net.ErrClosed)
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// TestC265_CloseWrite: the peer reads all and the end, again and again; its answer comes.
func TestC265_CloseWrite(t *testing.T) {
	pairs(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		want := pattern(100000, 0)
		go func() {
			c.Write(want)
			c.CloseWrite()
		}()
		reads(t, s, want)
		for range 3 {
			if n, err := s.Read(make([]byte, 10)); n != 0 || err != io.EOF {
				t.Fatal(n, err)
			}
		}
		writes(t, s, []byte("answer"))
		reads(t, c, []byte("answer"))
		_, err := c.Write([]byte("x"))
		isErr(t, "write after CloseWrite", err, syscall.EPIPE)
		if err := c.CloseWrite(); err != nil {
			t.Error("second CloseWrite:", err)
		}
	})
}

// TestC266_CloseRead: reading ends at once, and the peer is not held up.
func TestC266_CloseRead(t *testing.T) {
	pairs(t, func(t *testing.T, l *rig, s, c *rdma.Conn) {
		got := make(chan error, 1)
		go func() { _, err := c.Read(make([]byte, 1)); got <- err }()
		l.comes(t, "Read waits", asleep(c, 1))
		if err := c.CloseRead(); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != io.EOF {
			t.Error(err)
		}
		s.SetWriteDeadline(time.Now().Add(time.Minute))
		for range 160 {
			if _, err := s.Write(make([]byte, 64<<10)); err != nil {
				if !errors.Is(err, syscall.EPIPE) {
					t.Error(err)
				}
				break
			}
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Error(n, err)
		}
		writes(t, c, []byte("still"))
		reads(t, s, []byte("still"))
	})
}

// TestC274_WriteTimeout: what was taken arrives exactly once, and the stream goes on.
func TestC274_WriteTimeout(t *testing.T) {
	pairs(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		all := pattern(10<<20, 0)
		buf := append([]byte(nil), all...)
		c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := c.Write(buf)
		isErr(t, "Write", err, os.ErrDeadlineExceeded)
		if n <= 0 || n >= len(all) {
			t.Fatalf("%d bytes were taken", n)
		}
		clear(buf) // it is ours again
		c.SetWriteDeadline(time.Time{})
		go func() {
			c.Write(all[n:])
			c.CloseWrite()
		}()
		reads(t, s, all)
		if _, err := s.Read(make([]byte, 1)); err != io.EOF {
			t.Error(err)
		}
	})
}

// TestC276_BothWriteFirst: with nobody who reads both sides block, deadlines end that, and
// with readers all goes on.
func TestC276_BothWriteFirst(t *testing.T) {
	pairs(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		const size = 4 << 20
		var wg sync.WaitGroup
		for _, x := range []*rdma.Conn{s, c} {
			x.SetWriteDeadline(time.Now().Add(time.Second))
			wg.Go(func() {
				_, err := x.Write(pattern(16<<20, 0))
				isErr(t, "Write", err, os.ErrDeadlineExceeded)
				x.SetWriteDeadline(time.Time{})
			})
		}
		wg.Wait()
		for _, x := range [][2]*rdma.Conn{{s, c}, {c, s}} {
			wg.Go(func() { writes(t, x[0], make([]byte, size)) })
			wg.Go(func() {
				if n, err := io.CopyN(io.Discard, x[1], size); err != nil {
					t.Error(n, err)
				}
			})
		}
		wg.Wait()
	})
}

// TestC278_ManySizes: order and bytes are kept, whatever the sizes of writes and reads.
func TestC278_ManySizes(t *testing.T) {
	pairs(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		const total = 3 << 20
		go func() {
			x := uint32(1)
			for at := 0; at < total; {
				x = x*1664525 + 1013904223
				n := int(x>>16)%70000 + 1
				if x>>30 != 0 {
					n = n%200 + 1
				}
				n = min(n, total-at)
				if _, err := c.Write(pattern(n, at)); err != nil {
					t.Error(err)
					return
				}
				at += n
			}
			c.CloseWrite()
		}()
		b := make([]byte, 50000)
		x := uint32(7)
		for at := 0; ; {
			x = x*1664525 + 1013904223
			n, err := s.Read(b[:int(x>>16)%len(b)+1])
			want := pattern(n, at)
			for i := range want {
				if b[i] != want[i] {
					t.Fatalf("byte %d is wrong", at+i)
				}
			}
			at += n
			if err == io.EOF {
				if at != total {
					t.Errorf("%d bytes of %d", at, total)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestC286_Addresses: both ends say the same of each other, before and after Close.
func TestC286_Addresses(t *testing.T) {
	pairs(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		check := func() {
			t.Helper()
			for _, x := range [][2]net.Addr{{s.LocalAddr(), c.RemoteAddr()}, {c.LocalAddr(), s.RemoteAddr()}} {
				if x[0].String() != x[1].String() || x[0].Network() != "rdma" {
					t.Errorf("%v and %v", x[0], x[1])
				}
				if _, err := netip.ParseAddrPort(x[0].String()); err != nil {
					t.Error(err)
				}
			}
		}
		check()
		closeBoth(s, c)
		check()
	})
}

// TestC288_Concurrent: writes of several goroutines are not mixed, each byte is read once.
func TestC288_Concurrent(t *testing.T) {
	pairsNow(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		const writers, each, size = 4, 50, 3000
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for range each {
					writes(t, c, []byte(strings.Repeat(string(rune('a'+w)), size)))
				}
			})
		}
		go func() { wg.Wait(); c.CloseWrite() }()
		var mu sync.Mutex
		counts := map[byte]int{}
		var rg sync.WaitGroup
		for range 4 {
			rg.Go(func() {
				b := make([]byte, 1000)
				for {
					n, err := s.Read(b)
					mu.Lock()
					for _, x := range b[:n] {
						counts[x]++
					}
					mu.Unlock()
					if err != nil {
						return
					}
				}
			})
		}
		rg.Wait()
		for w := range writers {
			if n := counts[byte('a'+w)]; n != each*size {
				t.Errorf("%c: %d bytes", 'a'+w, n)
			}
		}
	})
}

// Each Write stays together.
func TestC288_Contiguous(t *testing.T) {
	pairsNow(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range 20 {
					writes(t, c, []byte(strings.Repeat(string(rune('a'+w)), 1000+i*997)))
				}
			})
		}
		go func() { wg.Wait(); c.CloseWrite() }()
		all, err := io.ReadAll(s)
		if err != nil {
			t.Fatal(err)
		}
		runs := 0
		for i := range all {
			if i == 0 || all[i] != all[i-1] {
				runs++
			}
		}
		if runs > 4*20 {
			t.Errorf("%d runs of 80 writes: they were mixed", runs)
		}
	})
}

// TestC287_Copies: ReadFrom, WriteTo and WriteBuffers carry the same bytes and counts.
func TestC287_Copies(t *testing.T) {
	pairs(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		want := pattern(1<<20+77, 0)
		go func() {
			n, err := io.Copy(c, io.LimitReader(strings.NewReader(string(want)), int64(len(want))))
			if n != int64(len(want)) || err != nil {
				t.Error(n, err)
			}
			bufs := net.Buffers{want[:10], nil, want[10:70000], {}, want[70000:]}
			if n, err := c.WriteBuffers(&bufs); n != int64(len(want)) || err != nil || len(bufs) != 0 {
				t.Error(n, err, len(bufs))
			}
			c.CloseWrite()
		}()
		var got strings.Builder
		n, err := io.Copy(&got, s)
		if n != int64(2*len(want)) || err != nil || got.String() != string(want)+string(want) {
			t.Errorf("%d bytes, %v", n, err)
		}
		// What was not written stays.
		s.SetWriteDeadline(time.Now().Add(time.Second))
		bufs := net.Buffers{make([]byte, 100), make([]byte, 32<<20)}
		n, err = s.WriteBuffers(&bufs)
		isErr(t, "WriteBuffers", err, os.ErrDeadlineExceeded)
		if len(bufs) != 1 || int64(len(bufs[0])) != 32<<20+100-n {
			t.Errorf("%d written, %d buffers left, the first with %d", n, len(bufs), len(bufs[0]))
		}
	})
}

// One gathered write is one message.
func TestC287_Gathers(t *testing.T) {
	pairs(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		before := c.Stats().Messages
		bufs := net.Buffers{[]byte("a"), []byte("b"), []byte("c")}
		if _, err := c.WriteBuffers(&bufs); err != nil {
			t.Fatal(err)
		}
		if n := c.Stats().Messages - before; n != 1 {
			t.Errorf("%d messages", n)
		}
		reads(t, s, []byte("abc"))
	})
}

// TestC303_Everything: all methods at once, from many goroutines.
func TestC303_Everything(t *testing.T) {
	pairsNow(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		var wg sync.WaitGroup
		stop := time.Now().Add(2 * time.Second)
		for i := range 40 {
			x := [2]*rdma.Conn{s, c}[i%2]
			wg.Go(func() {
				b := make([]byte, 5000)
				for n := 0; time.Now().Before(stop); n++ {
					switch (i + n) % 13 {
					case 0, 1:
						x.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
						x.Read(b)
					case 2, 3:
						x.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
						x.Write(b)
					case 4:
						x.TryRead(b)
					case 5:
						x.TryWrite(b)
					case 6:
						x.Stats()
						x.Transport()
					case 7:
						x.SetNoDelay(n%2 == 0)
					case 8:
						x.SetKeepAlivePeriod(time.Second)
					case 9:
						x.SetWriteBuffer(8<<10 + n)
						x.SetReadBuffer(64<<10 + n)
					case 10:
						x.WriteBuffers(&net.Buffers{b, b[:1]})
					case 11:
						x.LocalAddr()
						x.RemoteAddr()
						x.SetLinger(n % 3)
					case 12:
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		wg.Wait()
	})
}
