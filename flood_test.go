package rdma

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/internal/stream"
	"github.com/verbena-rdma/verbena/verbs"
)

// flood sends n requests with a hello of a mode, and keeps what it gets. If it is eager it
// then sends data, and says that many more wait.
type flood struct {
	p     verbs.Provider
	mode  stream.Mode
	eager bool
	pd    *verbs.PD
	cq    *verbs.CQ
	mr    *verbs.MR
	wg    sync.WaitGroup
	mu    sync.Mutex
	conns []*cm.Conn
}

func (f *flood) send(ctx context.Context, address string, n int) {
	h := stream.Hello{Flags: stream.FlagIOMap, Credits: 384, SGLAddr: 1 << 20, SGLKey: 1, SGLLen: 2, BufAddr: 1 << 21, BufKey: 2, BufLen: 65536}
	if f.mode == stream.Verbena {
		h.Ext = stream.Extension{Version: 1, Credits: 12, RecvSize: 512}
	}
	for range n {
		f.wg.Go(func() {
			route, err := cm.Resolve(ctx, f.p, address, nil)
			if err != nil {
				return
			}
			defer route.Close()
			qp, err := f.queue(route)
			if err != nil {
				return
			}
			c, err := route.Connect(ctx, &cm.ConnParam{Private: h.Append(nil)})
			if err != nil {
				return
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.conns = append(f.conns, c)
			if f.eager {
				const data, backlog = 0, 15 // up to 32 KiB
				qp.PostSend(verbs.SendImm(1, data<<28|backlog<<20|12, f.mr.SGE(0, 512), 0))
			}
		})
	}
}

// queue makes a small queue pair; all share the rest.
func (f *flood) queue(route *cm.Route) (qp *verbs.QP, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pd == nil {
		if f.pd, err = route.Device().AllocPD(); err != nil {
			return nil, err
		}
		if f.cq, err = route.Device().CreateCQ(1<<14, nil); err != nil {
			return nil, err
		}
		if f.mr, err = f.pd.Alloc(512, 0); err != nil {
			return nil, err
		}
	}
	if qp, err = route.CreateQP(f.pd, verbs.QPConfig{SendCQ: f.cq, MaxSendWR: 1, MaxRecvWR: 1}); err != nil {
		return nil, err
	}
	return qp, qp.PostRecv(verbs.Recv(1, verbs.SGE{})) // anything breaks it
}

func (f *flood) end() {
	f.wg.Wait()
	for _, c := range f.conns {
		f.wg.Go(func() { c.Close() })
	}
	f.wg.Wait()
	if f.pd != nil {
		f.cq.Close()
		f.mr.Close()
		f.pd.Close()
	}
}

// load is what a listener holds for connections that nobody has accepted.
func (l *Listener) load() (handshakes, queued, bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.hubs {
		h.mem.mu.Lock()
		for _, s := range h.mem.slabs {
			bytes += s.taken * arenaPage
		}
		h.mem.mu.Unlock()
	}
	return len(l.hands), len(l.queue), bytes
}

// TestFlood: a host sends hellos as fast as it can, and either falls silent in the
// handshake or completes it and waits, or sends data and says that it has many more. What the listener holds is bounded, and little for
// each; and as soon as the handshakes are over time, or somebody accepts, others have
// their turn.
func TestFlood(t *testing.T) {
	const backlog = 50
	for _, mode := range []stream.Mode{stream.Compatible, stream.Verbena} {
		for name, how := range map[string]struct{ silent, eager bool }{"silent": {silent: true}, "complete": {}, "eager": {eager: true}} {
			silent := how.silent
			if how.eager && mode == stream.Compatible {
				continue // to fill the buffers of the hello takes a peer with a table
			}
			t.Run(mode.String()+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					fabric := newTestNet(t)
					evil := netip.MustParseAddr("10.0.0.66")
					if silent {
						const readyToUse = 0x14
						fabric.LoseCM(evil, readyToUse)
					}
					n, err := (&ListenConfig{Backlog: backlog, Config: &Config{Provider: fabric.Host(netip.MustParseAddr("10.0.0.1"))}}).
						Listen(t.Context(), "rdma", "10.0.0.1:7471")
					if err != nil {
						t.Fatal(err)
					}
					l := n.(*Listener)
					ctx, cancel := context.WithCancel(t.Context())
					f := &flood{p: fabric.Host(evil), mode: mode, eager: how.eager}
					var closers sync.WaitGroup
					defer func() {
						cancel()
						l.Close()
						closers.Wait()
						f.end()
						time.Sleep(10 * time.Minute) // for whom nobody answers any more
					}()
					f.send(ctx, "10.0.0.1:7471", 1300)
					most := 0
					for range 20 {
						time.Sleep(100 * time.Millisecond)
						synctest.Wait()
						handshakes, queued, bytes := l.load()
						most = max(most, handshakes+queued)
						if handshakes > maxHandshakes || queued > backlog+maxHandshakes {
							t.Fatalf("%d handshakes, %d in the queue", handshakes, queued)
						}
						if all := handshakes + queued; bytes > (all+1)*24<<10 {
							t.Fatalf("%d bytes for %d connections", bytes, all)
						}
					}
					if silent && most != maxHandshakes || !silent && most < backlog {
						t.Errorf("at most %d at a time", most)
					}
					// A good dialer, beside all that.
					d := &Dialer{Timeout: 5 * time.Minute, Config: &Config{Provider: fabric.Host(netip.MustParseAddr("10.0.0.2"))}}
					dialled := make(chan error, 1)
					go func() {
						c, err := d.Dial("rdma", "10.0.0.1:7471")
						if err == nil {
							_, err = c.Write([]byte("good"))
							c.Close()
						}
						dialled <- err
					}()
					for good := false; !good; {
						l.SetDeadline(time.Now().Add(5 * time.Minute))
						s, err := l.Accept()
						if err != nil {
							t.Fatal(err, <-dialled)
						}
						s.(*Conn).SetLinger(0)
						if s.RemoteAddr().(Addr).Addr() != evil {
							good = true
							b := make([]byte, 4)
							if _, err := s.Read(b); err != nil || string(b) != "good" {
								t.Errorf("%q, %v", b, err)
							}
						}
						closers.Go(func() { s.Close() })
					}
					if err := <-dialled; err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}
