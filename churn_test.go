package rdma_test

import (
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
)

var churn = flag.Int("churn", 320, "connections of TestC306_Churn")

// TestC306_Churn: connections come and go, whoever closes first, and leave nothing behind: no
// object, goroutine, descriptor or thread. With -churn 100000 it takes some minutes, and shows
// that ports and ids can be used again.
func TestC306_Churn(t *testing.T) {
	onKernel(t) // what the lab keeps open is open
	rdmatest.CheckLeaks(t)
	before := len(verbs.Objects())
	l := &rig{place: onLoopback(t)}
	ln := l.listen(t)
	var served sync.WaitGroup
	go func() {
		for {
			c, err := ln.AcceptRDMA()
			if err != nil {
				return
			}
			served.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	}()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for i := range *churn / 8 {
				c, err := l.dialer().Dial("rdma", ln.Addr().String())
				if err != nil {
					t.Error(w, i, err)
					return
				}
				p := pattern(1+rnd.IntN(3000), i)
				writes(t, c, p)
				switch rnd.IntN(3) {
				case 0:
					reads(t, c, p)
				case 1:
					c.(*rdma.Conn).CloseWrite()
					if got, err := io.ReadAll(c); len(got) != len(p) || err != nil {
						t.Error(len(got), err)
					}
				case 2:
					c.(*rdma.Conn).SetLinger(0)
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	ln.Close()
	served.Wait()
	for end := time.Now().Add(5 * time.Second); len(verbs.Objects()) > before && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// TestC307_Idle: a thousand idle connections need no goroutine of their own.
func TestC307_Idle(t *testing.T) {
	if testing.Short() {
		t.Skip("it makes a thousand connections")
	}
	rdmatest.CheckLeaks(t)
	l := &rig{place: onLoopback(t)}
	ln := l.listen(t)
	defer ln.Close()
	s0, c0 := l.connect(t, ln)
	before := runtime.NumGoroutine()
	const n = 500
	var all []net.Conn
	for range n {
		s, c := l.connect(t, ln)
		all = append(all, s, c)
	}
	if grown := runtime.NumGoroutine() - before; grown > 20 {
		t.Errorf("%d goroutines for %d connections", grown, n)
	}
	for i := 0; i < len(all); i += 2 {
		writes(t, all[i], []byte("ping"))
		reads(t, all[i+1], []byte("ping"))
	}
	for i := 0; i < len(all); i += 2 {
		closeBoth(all[i], all[i+1])
	}
	closeBoth(s0, c0)
}
