package softroce_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// policies are the ways to wait that are compared.
var policies = []struct {
	name string
	spin verbs.Spin
}{
	{"sleep", verbs.Sleep},
	{"spin", verbs.SpinFor(time.Millisecond)},
	{"adaptive", verbs.Adaptive},
}

// busyWork is what processors are kept busy with.
var busyWork atomic.Uint64

func init() {
	for _, p := range policies {
		softroce.PeerRoles["echo-"+p.name] = func(in *bufio.Reader) error { return echoPolicy(in, p.spin) }
	}
	softroce.PeerRoles["busy"] = func(in *bufio.Reader) error {
		runtime.GOMAXPROCS(2)
		go func() {
			for n := uint64(0); ; n++ {
				busyWork.Store(n)
			}
		}()
		fmt.Fprintln(os.Stdout, "ready")
		io.Copy(io.Discard, in)
		return nil
	}
}

// echoPolicy is echoVerbs with a way to wait.
func echoPolicy(in *bufio.Reader, s verbs.Spin) error {
	e, _, err := newVerbsEnd()
	if err != nil {
		return err
	}
	e.cq.SetSpin(s)
	if err := e.meet(os.Stdout, in); err != nil {
		return err
	}
	go e.echo()
	fmt.Fprintln(os.Stdout, "ready")
	io.Copy(io.Discard, in)
	return nil
}

func (e *verbsEnd) echo() {
	for e.next(context.Background()) == nil && e.recv() == nil && e.send() == nil {
	}
}

// pinger is one end of a connection, and what its round trips took.
type pinger struct {
	name  string
	e     *verbsEnd
	times []time.Duration
}

func (p *pinger) ping(b *testing.B, n int) {
	ctx := context.Background()
	for range n {
		start := time.Now()
		if err := p.e.send(); err != nil {
			b.Fatal(err)
		}
		if err := p.e.next(ctx); err != nil {
			b.Fatal(err)
		}
		if err := p.e.recv(); err != nil {
			b.Fatal(err)
		}
		p.times = append(p.times, time.Since(start))
	}
}

// mean is the time that decides how many round trips there are in a second.
func (p *pinger) mean() float64 {
	var sum time.Duration
	for _, t := range p.times {
		sum += t
	}
	return float64(sum) / float64(len(p.times))
}

func (p *pinger) quantile(q float64) float64 {
	s := slices.Clone(p.times)
	slices.Sort(s)
	return float64(s[int(q*float64(len(s)-1))])
}

// twoProcesses connects an end for each policy with a process that waits the same way.
func twoProcesses(b *testing.B) []*pinger {
	var all []*pinger
	for _, x := range policies {
		e, end, err := newVerbsEnd()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(end)
		e.cq.SetSpin(x.spin)
		in, out := softroce.StartPeer(b, "echo-"+x.name)
		if err := e.meet(in, out); err != nil {
			b.Fatal(err)
		}
		if _, err := out.ReadString('\n'); err != nil {
			b.Fatal(err)
		}
		all = append(all, &pinger{name: x.name, e: e})
	}
	return all
}

// oneProcess connects two ends in this process for each policy.
func oneProcess(b *testing.B) []*pinger {
	var all []*pinger
	for _, x := range policies {
		var ends [2]*verbsEnd
		for i := range ends {
			e, end, err := newVerbsEnd()
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(end)
			e.cq.SetSpin(x.spin)
			ends[i] = e
		}
		ar, aw := pipe(b)
		br, bw := pipe(b)
		done := make(chan error)
		go func() { done <- ends[1].meet(aw, bufio.NewReader(br)) }()
		if err := ends[0].meet(bw, bufio.NewReader(ar)); err != nil {
			b.Fatal(err)
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		go ends[1].echo()
		all = append(all, &pinger{name: x.name, e: ends[0]})
	}
	return all
}

// pipe has room for what is written before somebody reads, where io.Pipe has none.
func pipe(b *testing.B) (r, w *os.File) {
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		r.Close()
		w.Close()
	})
	return r, w
}

// BenchmarkWait compares the policies of waiting in turn: the mean time of a round trip
// against that of Sleep, with processors that are free but for the two ends, and with
// one that computes on each processor: another process, or goroutines of this one.
func BenchmarkWait(b *testing.B) {
	for _, where := range []struct {
		name string
		make func(*testing.B) []*pinger
	}{{"processes", twoProcesses}, {"process", oneProcess}} {
		for _, load := range []string{"free", "busy", "goroutines"} {
			b.Run(where.name+"/"+load, func(b *testing.B) {
				all := where.make(b)
				if load != "free" { // a bound of a millisecond would take most of the time
					all = slices.DeleteFunc(all, func(p *pinger) bool { return p.name == "spin" })
				}
				switch load {
				case "busy":
					for range runtime.NumCPU() {
						_, out := softroce.StartPeer(b, "busy")
						if _, err := out.ReadString('\n'); err != nil {
							b.Fatal(err)
						}
					}
				case "goroutines":
					var stop atomic.Bool
					b.Cleanup(func() { stop.Store(true) })
					for range runtime.GOMAXPROCS(0) {
						go func() {
							for n := uint64(0); !stop.Load(); n++ {
								busyWork.Store(n)
							}
						}()
					}
				}
				for b.Loop() {
					for _, p := range all {
						p.ping(b, 100)
					}
				}
				for _, p := range all {
					b.ReportMetric(p.quantile(0.5), p.name+"-p50-ns")
					b.ReportMetric(p.quantile(0.99), p.name+"-p99-ns")
					b.ReportMetric(p.mean()/all[0].mean(), p.name+"/sleep")
				}
			})
		}
	}
}
