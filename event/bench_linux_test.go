package event_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
)

// BenchmarkTurn is what a turn costs that finds nothing, and one that finds a completion,
// without a sleep.
func BenchmarkTurn(b *testing.B) {
	for _, be := range backends {
		r := newRig(b, &scripted.Config{Unchecked: true, Descriptors: true})
		l := newLoop(b, event.Config{Backend: be})
		n := r.line(nil)
		got := 0
		get[*event.Watch](b)(l.CQ(n.cq, func(verbs.WC) { got++ }))
		b.Run(fmt.Sprint(be, "/nothing"), func(b *testing.B) {
			for b.Loop() {
				l.Turn(0)
			}
		})
		b.Run(fmt.Sprint(be, "/event"), func(b *testing.B) {
			for b.Loop() {
				n.give(1)
				for want := got + 1; got < want; {
					l.Turn(0)
				}
			}
		})
		b.Run(fmt.Sprint(be, "/batch of 64"), func(b *testing.B) {
			for b.Loop() {
				n.give(64)
				for want := got + 64; got < want; {
					l.Turn(0)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/completion")
		})
	}
}

// BenchmarkWake is a ping-pong of two goroutines, one of which sleeps in a loop (Run), against
// one that sleeps on a bare eventfd in Go's poller.
func BenchmarkWake(b *testing.B) {
	b.Run("eventfd in Go's poller", func(b *testing.B) {
		pong := make(chan bool)
		fd := get[int](b)(unix.Eventfd())
		f := os.NewFile(uintptr(fd), "eventfd")
		defer f.Close()
		go func() {
			var buf [8]byte
			for {
				if _, err := f.Read(buf[:]); err != nil {
					close(pong)
					return
				}
				pong <- true
			}
		}()
		for b.Loop() {
			signal(b, fd)
			<-pong
		}
		f.SetReadDeadline(time.Unix(1, 0))
		<-pong
	})
	pong := make(chan bool)
	for _, be := range backends {
		b.Run(fmt.Sprint(be, "/file"), func(b *testing.B) {
			l := newLoop(b, event.Config{Backend: be})
			fd := eventfd(b)
			get[*event.Watch](b)(l.File(fd, event.Readable, func(event.Mask) { drain(b, fd); pong <- true }))
			defer running(b, l)()
			for b.Loop() {
				signal(b, fd)
				<-pong
			}
		})
		b.Run(fmt.Sprint(be, "/completion"), func(b *testing.B) {
			r := newRig(b, &scripted.Config{Unchecked: true, Descriptors: true})
			l := newLoop(b, event.Config{Backend: be})
			n := r.line(nil)
			get[*event.Watch](b)(l.CQ(n.cq, func(verbs.WC) { pong <- true }))
			defer running(b, l)()
			for b.Loop() {
				n.give(1)
				<-pong
			}
		})
		b.Run(fmt.Sprint(be, "/function"), func(b *testing.B) {
			l := newLoop(b, event.Config{Backend: be})
			defer running(b, l)()
			f := func() { pong <- true }
			for b.Loop() {
				l.Do(f)
				<-pong
			}
		})
	}
}

// BenchmarkActiveAmongIdle is the time from a completion to its handler in a loop that sleeps,
// with 1000 idle queues beside it, each with a channel of its own, against none.
func BenchmarkActiveAmongIdle(b *testing.B) {
	for _, be := range []event.Backend{event.Epoll, event.Poll} {
		b.Run(be.String(), func(b *testing.B) {
			const idle = 1000
			pong := make(chan bool)
			var lines [2]*line
			for i := range lines {
				r := newRig(b, &scripted.Config{Unchecked: true, Descriptors: true})
				l := newLoop(b, event.Config{Backend: be})
				if i == 1 {
					// Of another device, as the scripted one searches its queues for each event.
					other := newRig(b, &scripted.Config{Unchecked: true, Descriptors: true})
					for range idle {
						cq := get[*verbs.CQ](b)(other.dev.CreateCQ(1, nil))
						other.closeLast(cq)
						get[*event.Watch](b)(l.CQ(cq, func(verbs.WC) {}))
					}
				}
				lines[i] = r.line(nil)
				get[*event.Watch](b)(l.CQ(lines[i].cq, func(verbs.WC) { pong <- true }))
				defer running(b, l)()
			}
			// In turns, so that both have the same weather.
			var took [2]time.Duration
			const part = 100
			for b.Loop() {
				for i, n := range lines {
					start := time.Now()
					for range part {
						n.give(1)
						<-pong
					}
					took[i] += time.Since(start)
				}
			}
			per := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(b.N) / part }
			b.ReportMetric(per(took[0]), "ns/alone")
			b.ReportMetric(per(took[1]), "ns/among1000")
			b.ReportMetric(float64(took[1])/float64(took[0]), "ratio")
		})
	}
}

// BenchmarkStream sends messages 64 deep over the embedded device between two loops that
// sleep, and counts wake-ups for each completion.
func BenchmarkStream(b *testing.B) {
	for _, be := range backends {
		b.Run(be.String(), func(b *testing.B) {
			const depth = 64
			a, peer := rdmatest.JoinedPair(b, verbs.QPConfig{MaxSendWR: depth, MaxRecvWR: 2 * depth})
			recv := newLoop(b, event.Config{Backend: be})
			mr := peer.UserData().(*verbs.MR)
			get[*event.Watch](b)(recv.CQ(peer.RecvCQ(), func(wc verbs.WC) {
				if wc.Status == ib.StatusSuccess {
					must(b, peer.PostRecv(verbs.Recv(wc.ID, mr.SGE(int(wc.ID)*rdmatest.PairRecvSize, rdmatest.PairRecvSize))))
				}
			}))
			send := newLoop(b, event.Config{Backend: be})
			smr := a.UserData().(*verbs.MR)
			sent, done := 0, 0
			post := func() {
				for sent < b.N && sent-done < depth {
					must(b, a.PostSend(verbs.Send(1, smr.SGE(0, 64), ib.Signaled)))
					sent++
				}
			}
			get[*event.Watch](b)(send.CQ(a.SendCQ(), func(wc verbs.WC) {
				if wc.Opcode.IsRecv() {
					return
				}
				must(b, wc.Err())
				done++
				post()
				if done == b.N {
					send.Stop()
				}
			}))
			stop := running(b, recv)
			b.ResetTimer()
			post()
			must(b, send.Run(context.Background()))
			b.StopTimer()
			stop()
			for name, s := range map[string]event.Stats{"sender": send.Stats(), "receiver": recv.Stats()} {
				b.ReportMetric(float64(s.Wakeups)/float64(b.N), "wakeups/"+name)
				b.ReportMetric(float64(s.Rescued), "rescued")
			}
		})
	}
}

// BenchmarkArmedIdle arms 10,000 queues of the embedded device in one loop that runs, and measures
// memory for each and processor time over ten seconds. Run it with -benchtime 1x; it needs
// as many descriptors (ulimit -n).
func BenchmarkArmedIdle(b *testing.B) {
	for _, shared := range []bool{false, true} {
		name := "own channels"
		if shared {
			name = "one channel"
		}
		b.Run(name, func(b *testing.B) {
			const queues = 10000
			f := rdmatest.NewFabric(b, 0)
			dev := get[*verbs.Device](b)(verbs.Open(f.Host(addr(b, "10.0.0.1")), ""))
			var ch *verbs.CompChannel
			if shared {
				ch = get[*verbs.CompChannel](b)(dev.CreateCompChannel())
				defer ch.Close()
			}
			cqs := make([]*verbs.CQ, queues)
			for i := range cqs {
				cqs[i] = get[*verbs.CQ](b)(dev.CreateCQ(1, &verbs.CQConfig{Channel: ch}))
				defer cqs[i].Close()
			}
			l := newLoop(b, event.Config{})
			before := heap()
			for _, cq := range cqs {
				get[*event.Watch](b)(l.CQ(cq, func(verbs.WC) { b.Error("called") }))
			}
			stop := running(b, l)
			time.Sleep(3 * time.Second) // and the first re-check
			each := float64(heap()-before) / queues
			var used, slept float64
			for b.Loop() {
				cpu, sleeps := cpuTime(b), l.Stats().Sleeps
				time.Sleep(10 * time.Second)
				used = float64((cpuTime(b) - cpu).Microseconds()) / 1e5
				slept = float64(l.Stats().Sleeps - sleeps)
			}
			b.ReportMetric(used, "%cpu")
			b.ReportMetric(slept, "wakeups/10s")
			b.ReportMetric(each, "bytes/source")
			stop()
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
