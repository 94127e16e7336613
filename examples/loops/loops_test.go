package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
)

// rdmaAddr is this process's own, as one process at a time has an address.
var rdmaAddr = fmt.Sprintf("127.7.%d.%d:0", os.Getpid()>>8&0xFF, os.Getpid()&0xFF)

// TestWays: each way to wait serves RDMA and TCP clients at once, some of whom leave in
// the middle, and ends when it is told to.
func TestWays(t *testing.T) {
	keepAsync(t)
	rdmatest.CheckLeaks(t)
	for _, way := range wayNames() {
		t.Run(way, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			p, _, err := rdma.Provider(rdma.Auto)
			if err != nil {
				t.Fatal(err)
			}
			s, err := newServer(p, rdmaAddr, "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			serving, stop := context.WithCancel(ctx)
			done := make(chan error, 1)
			go func() { done <- ways[way](serving, s) }()
			var wg sync.WaitGroup
			for i := range uint64(8) {
				wg.Go(func() {
					if err := messages(ctx, p, s.rdmaAddr().String(), 200, i); err != nil {
						t.Errorf("RDMA client %d: %v", i, err)
					}
				})
				wg.Go(func() {
					if err := stream(ctx, s.tcpAddr().String(), 1<<20, i); err != nil {
						t.Errorf("TCP client %d: %v", i, err)
					}
				})
			}
			wg.Wait()
			if answer, err := ask(ctx, p, s.rdmaAddr().String(), "hello"); answer != "hello" || err != nil {
				t.Errorf("ask: %q, %v", answer, err)
			}
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
			places(t, s)
		})
	}
}

// places checks that each place in memory belongs to one connection, or is free.
func places(t *testing.T, s *server) {
	for _, d := range s.devices.All() {
		had := make(map[int]int)
		for _, base := range d.free {
			had[base]++
		}
		for p := range s.peers {
			if p.dev == d {
				had[p.base]++
			}
		}
		for base, n := range had {
			if n != 1 {
				t.Errorf("the place at %d is given away or free %d times", base, n)
			}
		}
		if len(had) != conns {
			t.Errorf("%d places of %d are left", len(had), conns)
		}
	}
}

// keepAsync makes the descriptor of the device's asynchronous events before leaks are
// looked for: it belongs to the device, which the process shares and keeps.
func keepAsync(t *testing.T) {
	p, _, err := rdma.Provider(rdma.Auto)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := verbs.Open(p, "")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if _, err := dev.Async().FD(); err != nil {
		t.Fatal(err)
	}
}

// messages sends n messages of all sizes, several at once, and compares the answers. An odd
// client leaves without a word when half are done.
func messages(ctx context.Context, p verbs.Provider, addr string, n int, seed uint64) error {
	const window = depth / 2
	route, err := cm.Resolve(ctx, p, addr, nil)
	if err != nil {
		return err
	}
	defer route.Close()
	pd, err := route.Device().AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	cq, err := route.Device().CreateCQ(4*depth, nil)
	if err != nil {
		return err
	}
	defer cq.Close()
	mr, err := pd.Alloc(2*window*size, ib.LocalWrite)
	if err != nil {
		return err
	}
	defer mr.Close()
	qp, err := route.CreateQP(pd, verbs.QPConfig{SendCQ: cq, MaxSendWR: 4 * window, MaxRecvWR: window})
	if err != nil {
		return err
	}
	recv := func(i int) error { return qp.PostRecv(verbs.Recv(uint64(i), mr.SGE((window+i)*size, size))) }
	for i := range window {
		if err := recv(i); err != nil {
			return err
		}
	}
	conn, err := route.Connect(ctx, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	rnd := rand.New(rand.NewPCG(seed, 1))
	var sent [window][]byte
	send := func(i int) error {
		b := mr.Bytes()[i*size : i*size+1+rnd.IntN(size)]
		for j := range b {
			b[j] = byte(rnd.Uint32())
		}
		sent[i] = b
		return qp.PostSend(verbs.Send(uint64(i), mr.SGE(i*size, len(b)), ib.Signaled))
	}
	for i := range window {
		if err := send(i); err != nil {
			return err
		}
	}
	if seed%2 == 1 {
		n /= 2
	}
	for got := 0; got < n; {
		wc, err := cq.Next(ctx)
		if err == nil {
			err = wc.Err()
		}
		if err != nil {
			return errors.Join(err, qp.Err())
		}
		if !wc.Opcode.IsRecv() {
			continue // sent; the answer may come before the peer's acknowledgement
		}
		// Answers come in the order of the messages, so slot got%window has both.
		i := got % window
		answer := mr.Bytes()[(window+i)*size:][:wc.ByteLen]
		if int(wc.ID) != i || !bytes.Equal(answer, sent[i]) {
			return fmt.Errorf("message %d: %d bytes in receive %d are not the %d of slot %d", got, len(answer), wc.ID, len(sent[i]), i)
		}
		if err := errors.Join(recv(i), send(i)); err != nil {
			return err
		}
		got++
	}
	return nil
}

// stream sends n bytes and compares what comes back.
func stream(ctx context.Context, addr string, n int, seed uint64) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	data := make([]byte, n)
	rnd := rand.New(rand.NewPCG(seed, 2))
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	if seed%2 == 1 {
		// It sends and does not read: the server must not wait for it, nor keep it.
		c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		c.Write(bytes.Repeat(data, 64))
		return nil
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		wrote <- err
	}()
	back := make([]byte, n)
	if _, err := io.ReadFull(c, back); err != nil {
		return err
	}
	if !bytes.Equal(back, data) {
		return errors.New("not the bytes that were sent")
	}
	return <-wrote
}
