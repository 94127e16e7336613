package wait

import (
	"math/rand/v2"
	"testing"
	"time"
)

// pingPong is two ends that pass a message to and fro, in virtual time: each works, sends,
// and waits as its Spinner says. An end that sleeps is woken some time after the message has
// come.
type pingPong struct {
	machine
	r    *rand.Rand
	s    [2]Spinner
	now  time.Duration
	from [2]time.Duration // when an end began to wait
	to   [2]time.Duration // when it stops spinning then
	both int              // round trips in which nobody slept
}

// machine is what they run on.
type machine struct {
	net   time.Duration // from one end to the other
	work  time.Duration // of an end between message and answer
	wake  time.Duration // from a message to who sleeps
	alone time.Duration // what that takes longer while the other end spins
	steal time.Duration // who spins loses the processor after so much time, in the mean; 0: never
	slice time.Duration // for as long, in the mean
	rough float64       // how often an end stops for a slice whatever it does
}

var (
	// free has a processor for each end: a round trip takes 36 µs asleep, 21 if one end
	// spins, 6 if both do.
	free = machine{net: 2 * us, work: us, wake: 15 * us}
	// slow takes 100 µs, and 20.
	slow = machine{net: 5 * us, work: 5 * us, wake: 40 * us}
	// dear is one on which to be woken costs twenty times what a message does: 880 µs, and 80.
	dear = machine{net: 20 * us, work: 20 * us, wake: 400 * us}
	// guest is emulated, where all takes longer, to be woken above all: 286 µs, and 46.
	guest = machine{net: 15 * us, work: 8 * us, wake: 120 * us}
	// near is one process, in which the scheduler needs no other thread: 24 µs, and 16.
	near = machine{net: 7 * us, work: us, wake: 4 * us}
)

// uneven is one that stops an end now and then, asleep or not.
func (m machine) uneven(often float64) machine {
	m.rough, m.slice = often, 4*time.Millisecond
	return m
}

// together is a machine on which it is a loss if only one end spins.
func (m machine) together() machine {
	m.alone = m.wake + 10*us
	return m
}

// busy is one whose processors others want, too.
func (m machine) busy(steal time.Duration) machine {
	m.steal, m.slice = steal, 4*time.Millisecond
	return m
}

func newPingPong(m machine, seed uint64, adaptive bool) *pingPong {
	p := &pingPong{machine: m, r: rand.New(rand.NewPCG(seed, 1))}
	for i := range p.s {
		p.s[i].Set(0, adaptive)
		p.wait(i)
	}
	return p
}

func (p *pingPong) wait(i int) {
	p.from[i] = p.now
	p.to[i] = p.now + p.s[i].Budget()
}

// message goes to end i, which waits, from the other one, which begins to. It reports
// whether i was awake.
func (p *pingPong) message(i int) (awake bool) {
	p.wait(1 - i)
	come := p.now + p.net
	var stops [2]time.Duration // of the sender, and of the receiver
	for k := range stops {
		if p.rough > 0 && p.r.Float64() < p.rough {
			stops[k] = time.Duration(p.r.Int64N(int64(2 * p.slice)))
		}
	}
	come += stops[0]
	budget := p.to[i] - p.from[i]
	stolen := stops[1]
	if looked := min(come, p.to[i]) - p.from[i]; p.steal > 0 && p.r.Float64() < float64(looked)/float64(p.steal) {
		stolen += time.Duration(p.r.Int64N(int64(2 * p.slice)))
	}
	if awake = budget > 0 && come <= p.to[i]; awake {
		p.now = come + stolen
		p.s[i].Hit(p.now - p.from[i])
	} else {
		p.now = come + p.wake + stolen
		if p.to[1-i] > come {
			p.now += p.alone
		}
		if budget > 0 {
			budget += stolen
		}
		p.s[i].Miss(budget, p.now-p.from[i])
	}
	p.now += p.work
	return awake
}

// run gives the mean time of a round trip.
func (p *pingPong) run(rounds int) time.Duration {
	start := p.now
	p.both = 0
	for range rounds {
		one, two := p.message(1), p.message(0)
		if one && two {
			p.both++
		}
	}
	return (p.now - start) / time.Duration(rounds)
}

// against gives the time of a round trip of adaptive ends, against that of ends that sleep.
func against(m machine, seed uint64, rounds int, prepare func(*pingPong)) float64 {
	p := newPingPong(m, seed, true)
	if prepare != nil {
		prepare(p)
	}
	return float64(p.run(rounds)) / float64(newPingPong(m, seed, false).run(rounds))
}

// TestPingPong: with free processors both ends soon spin, whichever begins, and also where
// it is a loss if only one does; with processors that others want they soon sleep. The ratios
// are those to ends that always sleep.
func TestPingPong(t *testing.T) {
	t.Parallel()
	// ahead has one end believe that it has waited more often than the other.
	ahead := func(n int) func(*pingPong) {
		return func(p *pingPong) {
			for range n {
				p.s[0].Miss(p.s[0].Budget(), 36*us)
			}
		}
	}
	for _, x := range []struct {
		name    string
		m       machine
		prepare func(*pingPong)
		short   float64 // limit for 2,000 round trips; the aim with free processors is 0.7
		long    float64 // for 50,000; the aim with busy ones is 1.1
	}{
		{"free", free, nil, 0.2, 0.2},
		{"slow", slow, nil, 0.25, 0.25},
		{"dear", dear, nil, 0.12, 0.1},
		{"near", near, nil, 0.7, 0.7},
		{"free, one ahead", free, ahead(50), 0.5, 0.2},
		{"near, one ahead", near, ahead(50), 0.8, 0.7},
		{"together", free.together(), nil, 0.2, 0.2},
		{"together, one a little ahead", free.together(), ahead(3), 0.5, 0.2},
		{"dear, together", dear.together(), nil, 0.15, 0.1},
		{"dear, one ahead", dear, ahead(50), 0.6, 0.2},
		{"dear, uneven", dear.uneven(0.001), nil, 0.5, 0.5},
		{"dear, seldom busy", dear.busy(10 * time.Millisecond), nil, 1, 0.7},
		{"dear, busy", dear.busy(2 * time.Millisecond), nil, 1.1, 1.1},
		{"dear, very busy", dear.busy(200 * us), nil, 1.1, 1.1},
		{"guest, uneven", guest.uneven(0.01), nil, 0.8, 0.55},
		{"guest, seldom busy", guest.busy(5 * time.Millisecond), nil, 1.05, 0.55},
		{"guest, busy", guest.busy(time.Millisecond), nil, 1.2, 1.1},
		{"together, one ahead", free.together(), ahead(50), 1.1, 1.02},
		{"together, near", near.together(), nil, 0.7, 0.7},
		{"seldom busy", free.busy(10 * time.Millisecond), nil, 0.7, 0.7},
		{"busy", free.busy(2 * time.Millisecond), nil, 1.5, 1.1},
		{"very busy", free.busy(200 * us), nil, 1.5, 1.1},
		{"very busy, near", near.busy(200 * us), nil, 1.7, 1.1},
		{"uneven", free.uneven(0.001), nil, 0.9, 0.75},
		{"very uneven", free.uneven(0.03), nil, 1.1, 1.03},
		{"very busy, slow", slow.busy(200 * us), nil, 1.3, 1.1},
	} {
		for seed := range uint64(3) {
			if r := against(x.m, seed, 2000, x.prepare); r > x.short {
				t.Errorf("%s, seed %d: %.2f of sleeping in 2,000 round trips, limit %.2f", x.name, seed, r, x.short)
			}
			if r := against(x.m, seed, 50_000, x.prepare); r > x.long {
				t.Errorf("%s, seed %d: %.2f of sleeping in 50,000 round trips, limit %.2f", x.name, seed, r, x.long)
			}
		}
	}
}

// TestPingPongChange: ends that have learned to sleep, each from losses of its own, find
// out together that the machine is free again, also where one alone would never; and those
// that spin stop when it becomes busy.
func TestPingPongChange(t *testing.T) {
	t.Parallel()
	for _, m := range []machine{free, free.together(), near, near.together(), dear, dear.together()} {
		for seed := range uint64(5) {
			p := newPingPong(m.busy(200*us), seed, true)
			p.run(5000)
			if p.run(1000); p.both > 200 {
				t.Errorf("seed %d: %d of 1000 round trips without a sleep on a busy machine", seed, p.both)
			}
			p.steal = 0
			p.run(5 * mostPeriod)
			if p.run(1000); p.both < 900 {
				t.Errorf("seed %d, %+v: %d of 1000 round trips without a sleep when it is free again", seed, m, p.both)
			}
			p.machine = m.busy(200 * us)
			p.run(100)
			if p.run(1000); p.both > 300 {
				t.Errorf("seed %d: %d of 1000 round trips without a sleep when it is busy again", seed, p.both)
			}
		}
	}
}
