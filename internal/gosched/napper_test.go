package gosched

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestNapper: in worlds where naps are quicker nearly all waits are naps, in others hardly any;
// and when the world changes it follows.
func TestNapper(t *testing.T) {
	t.Parallel()
	const us = time.Microsecond
	for _, x := range []struct {
		name         string
		poller, naps time.Duration
		least, most  float64 // share of naps among 50,000 waits
	}{
		{"another process, emulated", 900 * us, 370 * us, 0.99, 1},
		{"another process", 14 * us, 10 * us, 0.99, 1},
		{"the same process", 5 * us, 60 * us, 0, 0.01},
		{"somewhat slower", 50 * us, 90 * us, 0, 0.02},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(1, 2))
			noise := func(d time.Duration) time.Duration {
				if rnd.IntN(100) == 0 {
					return 4 * time.Millisecond // the processor was with others
				}
				return d/2 + time.Duration(rnd.Int64N(int64(d)))
			}
			var n napper
			run := func(poller, naps time.Duration, waits int) float64 {
				napped := 0
				for range waits {
					switch {
					case !n.naps():
						n.slept(noise(poller))
					case n.measured():
						napped++
						n.napped(noise(naps))
					default:
						napped++
						n.napped(0)
					}
				}
				return float64(napped) / float64(waits)
			}
			if share := run(x.poller, x.naps, 50_000); share < x.least || share > x.most {
				t.Errorf("%.4f of the waits were naps, want %v to %v", share, x.least, x.most)
			}
			run(x.naps, x.poller, napLast+100) // the other way round
			if share := run(x.naps, x.poller, 20_000); x.least > 0.5 && share > 0.2 || x.least < 0.5 && share < 0.5 {
				t.Errorf("%.4f of the waits were naps after the change", share)
			}
		})
	}
}

// TestNapperFar: a wait for something far is followed by waits in the poller, and changes nothing
// of what is known.
func TestNapperFar(t *testing.T) {
	t.Parallel()
	var n napper
	for range 100 {
		if n.naps() {
			n.napped(10)
		} else {
			n.slept(20)
		}
	}
	for _, far := range []func(){n.far, n.tired} {
		far()
		asleep := 0
		for ; !n.naps(); asleep++ {
			if asleep > napNear {
				t.Fatal("no nap any more")
			}
			n.slept(20)
		}
		if asleep == 0 {
			t.Error("a nap at once")
		}
	}
}
