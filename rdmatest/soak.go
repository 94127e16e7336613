package rdmatest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// SoakOptions of Soak. Nil and zero fields mean what each says.
type SoakOptions struct {
	Cycles int           // of all ways together; zero: 40,000
	Ways   []string      // names; nil: all that this system has
	Stall  time.Duration // without progress a way has failed; zero: 1 min
}

// Soak looks for lost wake-ups: two sides on one device pass a message to and fro, each
// arming its queue, sleeping until the message is there, and answering it, in every way in
// which a program can wait: a goroutine in CQ.Wait, select, poll and epoll (by level and by
// edge) on the channel's descriptor, and event.Loop on each of its multiplexers. A cycle is
// one message received. It fails if a cycle was rescued by a look that nobody announced,
// after a second, or if the messages come to a halt.
//
// It is for tests of providers; ten million cycles are a good number to trust one.
func Soak(t *testing.T, p verbs.Provider, o *SoakOptions) {
	t.Helper()
	dev, err := verbs.Open(p, "")
	if err != nil {
		t.Fatalf("soak: %v", err)
	}
	soak(t, o, func(t testing.TB) [2]*soakSide { return soakPair(t, dev) })
}

// soakSide is one side of a soak.
type soakSide struct {
	cq   *verbs.CQ
	give func() error // has the other side get a message
	took func() error // makes good for one that was received
}

// soakWay is a way to wait: it calls s.message for each completion until that is false.
type soakWay struct {
	name string
	run  func(ctx context.Context, s *soakRun) error
}

// soakRun is a side at work.
type soakRun struct {
	*soakSide
	left    *atomic.Int64 // messages of both sides
	over    func()        // called when none is left
	sleeps  uint64
	rescued uint64
}

// message follows the completion of a receive; false: it was the last.
func (s *soakRun) message(wc *verbs.WC) (bool, error) {
	if err := wc.Err(); err != nil {
		return false, err
	}
	if err := s.took(); err != nil {
		return false, err
	}
	switch n := s.left.Add(-1); {
	case n > 0:
		return true, s.give()
	case n == 0:
		s.over()
		return false, s.give() // so that the other side wakes, and sees that it is over
	}
	return false, nil
}

// messages is message for several.
func (s *soakRun) messages(wcs []verbs.WC) (bool, error) {
	for i := range wcs {
		if more, err := s.message(&wcs[i]); !more || err != nil {
			return more, err
		}
	}
	return true, nil
}

// soakByWait waits in CQ.Wait.
func soakByWait(ctx context.Context, s *soakRun) error {
	before := s.cq.Stats()
	defer func() {
		after := s.cq.Stats()
		s.sleeps, s.rescued = after.Sleeps-before.Sleeps, after.Rescued-before.Rescued
	}()
	var dst [4]verbs.WC
	for {
		n, err := s.cq.Wait(ctx, dst[:])
		if err != nil {
			return err
		}
		if more, err := s.messages(dst[:n]); !more || err != nil {
			return err
		}
	}
}

func soakWays() []soakWay {
	return append([]soakWay{{"Wait", soakByWait}}, soakDescriptorWays()...)
}

func soak(t *testing.T, o *SoakOptions, pair func(testing.TB) [2]*soakSide) {
	t.Helper()
	if o == nil {
		o = &SoakOptions{}
	}
	cycles, stall, ways := o.Cycles, o.Stall, soakWays()
	if cycles == 0 {
		cycles = 40_000
	}
	if stall == 0 {
		stall = time.Minute
	}
	if o.Ways != nil {
		var some []soakWay
		for _, name := range o.Ways {
			found := false
			for _, w := range ways {
				if w.name == name {
					some, found = append(some, w), true
				}
			}
			if !found {
				t.Fatalf("soak: there is no way %q", name)
			}
		}
		ways = some
	}
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			n := (cycles + len(ways) - 1) / len(ways)
			r, err := soakOne(w, pair(t), n, stall)
			t.Log(r)
			if err != nil {
				t.Error(err)
			}
			if r.rescued != 0 {
				t.Errorf("%d wake-ups were lost", r.rescued)
			}
			if r.sleeps < uint64(n)/10 {
				t.Error("it hardly slept, so nothing was tried")
			}
		})
	}
}

type soakResult struct {
	cycles          int64
	sleeps, rescued uint64
	took            time.Duration
}

func (r soakResult) String() string {
	return fmt.Sprintf("%d cycles, %d sleeps, %d rescues in %v (%v each)", r.cycles, r.sleeps, r.rescued,
		r.took.Round(time.Millisecond), r.took/time.Duration(max(r.cycles, 1)))
}

// soakOne is one way.
func soakOne(w soakWay, sides [2]*soakSide, cycles int, stall time.Duration) (r soakResult, err error) {
	var left atomic.Int64
	left.Store(int64(cycles))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	start := time.Now()
	var runs [2]*soakRun
	var errs [3]error
	var wg sync.WaitGroup
	for i, side := range sides {
		runs[i] = &soakRun{soakSide: side, left: &left, over: cancel}
		wg.Go(func() {
			if errs[i] = w.run(ctx, runs[i]); errs[i] != nil {
				cancel()
			}
		})
	}
	errs[2] = sides[0].give()
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	last := left.Load()
	for tick := time.NewTicker(stall); ; {
		select {
		case <-done:
			tick.Stop()
		case <-tick.C:
			if n := left.Load(); n < last {
				last = n
				continue
			}
			tick.Stop()
			errs[2] = fmt.Errorf("no message in %v: a wake-up is lost", stall)
			cancel()
			<-done
		}
		break
	}
	r = soakResult{int64(cycles) - max(left.Load(), 0), runs[0].sleeps + runs[1].sleeps, runs[0].rescued + runs[1].rescued, time.Since(start)}
	for _, e := range errs {
		if e != nil && !errors.Is(e, context.Canceled) {
			err = errors.Join(err, e)
		}
	}
	if err == nil && r.cycles < int64(cycles) {
		err = fmt.Errorf("%d of %d cycles were done", r.cycles, cycles)
	}
	return r, err
}

const (
	soakDepth   = 16
	soakMessage = 8
)

// soakPair joins two queue pairs of a device, with queues of their own.
func soakPair(t testing.TB, dev *verbs.Device) [2]*soakSide {
	t.Helper()
	fail := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("soak: %s: %v", what, err)
		}
	}
	closeLast := func(c interface{ Close() error }) {
		t.Cleanup(func() { fail("close", c.Close()) })
	}
	pd, err := dev.AllocPD()
	fail("alloc pd", err)
	closeLast(pd)
	mr, err := pd.Alloc(4096, ib.LocalWrite)
	fail("register", err)
	closeLast(mr)
	var sides [2]*soakSide
	var qps [2]*verbs.QP
	var ends [2]verbs.Endpoint
	for i := range sides {
		rcq, err := dev.CreateCQ(2*soakDepth, nil)
		fail("create cq", err)
		closeLast(rcq)
		scq, err := dev.CreateCQ(2*soakDepth, nil)
		fail("create cq", err)
		closeLast(scq)
		qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: scq, RecvCQ: rcq, MaxSendWR: soakDepth, MaxRecvWR: soakDepth})
		fail("create qp", err)
		closeLast(qp)
		var dst [soakDepth]verbs.WC
		sent, answered := 0, 0
		sides[i] = &soakSide{
			cq: rcq,
			give: func() error {
				for sent-answered >= soakDepth { // acknowledged soon: the peer has the messages
					n, err := scq.Poll(dst[:])
					if err != nil {
						return err
					}
					for j := range n {
						if err := dst[j].Err(); err != nil {
							return fmt.Errorf("send: %w", err)
						}
					}
					answered += n
					if n == 0 {
						if n, err = scq.Wait(context.Background(), dst[:1]); err != nil {
							return err
						}
						answered += n
					}
				}
				sent++
				return qp.PostSend(verbs.Send(0, mr.SGE(0, soakMessage), ib.Signaled))
			},
			took: func() error { return qp.PostRecv(verbs.Recv(0, mr.SGE(64, soakMessage))) },
		}
		qps[i] = qp
		ends[i], err = qp.Endpoint(1, -1)
		fail("endpoint", err)
		for range soakDepth {
			fail("post", sides[i].took())
		}
	}
	for i, qp := range qps {
		fail("join", qp.Join(ends[1-i], &verbs.PathOptions{Access: ib.LocalWrite}))
	}
	return sides
}
