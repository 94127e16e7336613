package rdma

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestQueueBreaksInHandshake: the completion queue ends while a connection is made. Either
// that fails, or the first call does; nothing waits for a completion that nobody tells.
func TestQueueBreaksInHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := rdmatest.NewFabric(t, 0)
		server, client := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
		ln, err := (&ListenConfig{Config: &Config{Provider: f.Host(server)}}).listen(t.Context(), "rdma", server.String()+":0")
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := (&Config{KeepAlive: -1}).settle()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		route, err := cm.Resolve(ctx, f.Host(client), ln.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		h, err := acquireHub(route.Device(), 0)
		if err != nil {
			t.Fatal(err)
		}
		heal := f.Cut(client, server)
		type result struct {
			c   *Conn
			err error
		}
		made := make(chan result)
		go func() {
			c, err := connect(ctx, &cfg, route)
			made <- result{c, err}
		}()
		synctest.Wait() // it has asked, and nobody hears
		h.cq.Close()
		synctest.Wait()
		heal()
		r := <-made
		if r.err == nil {
			r.c.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := r.c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read: %v, want ECONNRESET", err)
			}
			r.c.Close()
		}
		h.release(0)
		ln.Close()
		time.Sleep(time.Minute) // what nobody accepted is reset in the background
	})
}
