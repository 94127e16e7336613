package rdma_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestC305_NthCallFails runs a whole life of a connection, and has the n-th call of each
// function of the driver fail, for every n: each end has an error or all that was written,
// nobody waits for ever, the next connection of the same listener is whole, and nothing is
// left over.
func TestC305_NthCallFails(t *testing.T) {
	const alike = 16 // the hundredth post is like the ones before
	for _, m := range modes {
		for op, least := range map[string]int{
			"open device": 1, "alloc pd": 2, "create channel": 1, "create cq": 2, "arm cq": 2, "reg mr": 2, "create qp": 2, "modify qp": 6, "post recv": 2, "post send": 2,
			"open cm": 1, "open cm channel": 2, "create id": 2, "bind": 1, "listen": 1, "resolve address": 1, "resolve route": 1, "init attr": 6, "connect": 1, "migrate": 1,
			"accept": 1, "establish": 1, "disconnect": 1,
		} {
			t.Run(m.name+"/"+op, func(t *testing.T) {
				for n, more := 1, true; more && n <= alike; n++ {
					synctest.Test(t, func(t *testing.T) { more = failNth(t, m.compatible, op, n) })
					if !more && n <= least {
						t.Errorf("there are only %d calls", n-1)
					}
				}
			})
		}
	}
}

// failNth runs the life with one failure, and reports whether there was one.
func failNth(t *testing.T, compatible bool, op string, n int) bool {
	p := onFabric(t)
	f := &faults{op: op, at: n}
	before := verbs.Objects()
	cfg := rdma.Config{Compatible: compatible}
	l := &rig{place: &place{name: "faulty", server: &faulty{p.server, f}, client: &faulty{p.client, f}, address: p.address, fabric: p.fabric}, server: cfg, client: cfg}
	err := lifeOf(t, l, f)
	if err != nil && !f.failed() {
		t.Errorf("no call failed, but: %v", err)
	}
	time.Sleep(time.Minute) // what is shared goes when nobody has used it for a while
	synctest.Wait()
	left := slices.DeleteFunc(verbs.Objects(), func(o string) bool { return slices.Contains(before, o) })
	if len(left) > 0 {
		t.Errorf("left over: %q", left)
	}
	if t.Failed() {
		t.Fatalf("call %d failed, and the life ended with %v", n, err)
	}
	return f.failed()
}

// lifeOf connects, exchanges, closes, and gives the first error. A second connection must
// be without one.
func lifeOf(t *testing.T, l *rig, f *faults) error {
	cfg := l.server
	cfg.Provider = l.place.server
	n, err := (&rdma.ListenConfig{Config: &cfg}).Listen(t.Context(), "rdma", l.address)
	if err != nil {
		return err
	}
	ln := n.(*rdma.Listener)
	defer ln.Close()
	first := exchangeOf(l, ln, pattern(100_000, 1))
	f.stop()
	if errors.Is(first, os.ErrDeadlineExceeded) {
		t.Errorf("nobody was told: %v", first)
	}
	if err := exchangeOf(l, ln, pattern(1000, 2)); err != nil {
		t.Errorf("the next connection: %v", err)
	}
	return first
}

// exchangeOf has both sides of a connection send and read to the end.
func exchangeOf(l *rig, ln *rdma.Listener, want []byte) error {
	ln.SetDeadline(time.Now().Add(2 * time.Minute))
	server := make(chan error, 1)
	go func() {
		server <- func() error {
			s, err := ln.Accept()
			if err != nil {
				return err
			}
			defer s.Close()
			s.SetDeadline(time.Now().Add(10 * time.Minute))
			got, err := io.ReadAll(s)
			if err != nil {
				return err
			}
			if !bytes.Equal(got, want) {
				return fmt.Errorf("the server has read %d wrong bytes", len(got))
			}
			_, err = s.Write(got)
			return err
		}()
	}()
	client := func() error {
		c, err := l.dialer().Dial("rdma", ln.Addr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Minute))
		if _, err := c.Write(want); err != nil {
			return err
		}
		if err := c.(*rdma.Conn).CloseWrite(); err != nil {
			return err
		}
		got, err := io.ReadAll(c)
		if err == nil && !bytes.Equal(got, want) {
			err = fmt.Errorf("the client has read %d wrong bytes", len(got))
		}
		return err
	}()
	if client != nil { // there may be nothing to accept
		ln.SetDeadline(time.Now().Add(30 * time.Second))
	}
	err := <-server
	if client != nil {
		return client
	}
	return err
}
