package rdma_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestC313_SlowProcess: no connection is lost because a process is slow: its server has one
// processor, on which a goroutine computes, collects its garbage every 10 ms, and shares the
// machine with a process that computes on every processor.
func TestC313_SlowProcess(t *testing.T) {
	rdmatest.CheckLeaks(t)
	startPeer(t, peerRole{Service: "hog"})
	r := peerRole{Network: "rdma", Service: "slow"}
	p := startPeer(t, r)
	const conns, rounds = 8, 10
	var clients sync.WaitGroup
	for i := range conns {
		clients.Go(func() {
			c, err := dialAs(r, p.address)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(2 * time.Minute))
			want := pattern(100_000, i)
			got := make([]byte, len(want))
			for round := range rounds {
				wrote := make(chan error, 1)
				go func() {
					_, err := c.Write(want)
					wrote <- err
				}()
				if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
					t.Errorf("connection %d, round %d: %d bytes came back, %v", i, round, n, err)
				}
				if err := <-wrote; err != nil {
					t.Errorf("connection %d, round %d: %v", i, round, err)
				}
				if t.Failed() {
					return
				}
			}
		})
	}
	clients.Wait()
}

// TestC313_Paused: nor is it lost because a process stands still for some seconds, whatever it
// and its peer were doing: making connections, in the middle of a transfer in both directions,
// or closing. (What comes for it waits in its socket meanwhile, and it sends nothing.)
func TestC313_Paused(t *testing.T) {
	for _, pause := range []time.Duration{100 * time.Millisecond, time.Second, 4 * time.Second} {
		t.Run(pause.String(), func(t *testing.T) {
			each(t, func(t *testing.T, l *rig) {
				if l.fabric == nil {
					t.Skip("a kernel does not stand still")
				}
				l.fabric.Delay(netip.Addr{}, netip.Addr{}, time.Millisecond, 0)
				rnd := rand.New(rand.NewPCG(l.fabric.Seed(), 313))
				var paused, over atomic.Bool
				held, stopped := 0, make(chan struct{})
				asleep := l.fabric.Rule(rdmatest.Rule{Hold: true, Match: func(d rdmatest.Datagram) bool {
					return paused.Load() && (d.From.Addr() == serverAddr || d.To.Addr() == serverAddr)
				}})
				go func() {
					defer close(stopped)
					for !over.Load() {
						paused.Store(true)
						time.Sleep(pause)
						held += asleep.Held()
						paused.Store(false)
						asleep.Release()
						time.Sleep(time.Duration(rnd.Int64N(int64(20 * time.Millisecond))))
					}
				}()
				defer func() {
					over.Store(true)
					<-stopped
					if held == 0 {
						t.Error("no packet was on its way when the process stood still")
					}
				}()
				l.client.Linger, l.server.Linger = time.Minute, time.Minute
				ln := l.listen(t)
				defer ln.Close()
				for range 5 {
					s, c := l.connect(t, ln)
					const size = 1 << 20
					var both sync.WaitGroup
					for _, way := range [][2]*rdma.Conn{{s, c}, {c, s}} {
						both.Go(func() {
							if _, err := way[0].Write(pattern(size, 1)); err != nil {
								t.Error(err)
							}
							way[0].CloseWrite()
						})
						both.Go(func() {
							if got, err := io.ReadAll(way[1]); err != nil || !bytes.Equal(got, pattern(size, 1)) {
								t.Errorf("read %d bytes, %v", len(got), err)
							}
						})
					}
					both.Wait()
					closeBoth(s, c)
				}
			})
		})
	}
}

func init() {
	peerAlone["hog"] = func() error {
		for range runtime.NumCPU() {
			go compute()
		}
		fmt.Println("hog")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	}
	peerAlone["slow"] = func() error {
		runtime.GOMAXPROCS(1)
		ln, err := listenAs("rdma", "")
		if err != nil {
			return err
		}
		fmt.Println(ln.Addr())
		go func() {
			io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
		go compute()
		go func() {
			for range time.Tick(10 * time.Millisecond) {
				runtime.GC()
			}
		}()
		for {
			c, err := ln.Accept()
			if err != nil {
				return err
			}
			go servePeer(c, "echo")
		}
	}
}

// compute does nothing, for ever.
func compute() {
	for n := new(atomic.Uint64); ; {
		n.Add(1)
	}
}
