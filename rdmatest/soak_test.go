package rdmatest

import (
	"flag"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// The soak: no wake-up is lost in many cycles of arming, sleeping and waking.
//
//	go test ./rdmatest -run Soak -soak 10000000 -timeout 3h -v
//
// The cycles are divided among the providers and the ways of waiting. With
// VERBENA_PROVIDER=kernel (or soft) they are those of that provider alone.
var soakCycles = flag.Int("soak", 32_000, "cycles of the soak")

// TestC239_Soak soaks the scripted provider, with descriptors and without, and the embedded
// device; or the provider that the environment names.
func TestC239_Soak(t *testing.T) {
	n := *soakCycles
	if testing.Short() {
		n = min(n, 8_000)
	}
	if os.Getenv(rdma.EnvProvider) != "" {
		p, why, err := rdma.Provider(rdma.Auto)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(why)
		Soak(t, p, &SoakOptions{Cycles: n})
		return
	}
	o := func(parts int) *SoakOptions { return &SoakOptions{Cycles: n / parts, Stall: time.Minute} }
	t.Run("Scripted", func(t *testing.T) {
		soak(t, o(4), func(t testing.TB) [2]*soakSide { return scriptedPair(t, false) })
	})
	t.Run("ScriptedDescriptors", func(t *testing.T) {
		soak(t, o(4), func(t testing.TB) [2]*soakSide { return scriptedPair(t, true) })
	})
	t.Run("Embedded", func(t *testing.T) {
		addr := netio.PrivateLoopback(42)
		p, err := softroce.New(&softroce.Config{Addrs: []netip.Addr{addr}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		Soak(t, p, o(2))
	})
}

// scriptedPair is a pair whose messages the script delivers, in the strict model.
func scriptedPair(t testing.TB, descriptors bool) [2]*soakSide {
	t.Helper()
	sides, _ := scriptedSides(t, descriptors)
	return sides
}

// TestSoakFindsLoss: an event that is lost in the middle is found, counted once, and harms
// nothing else, in each way.
func TestSoakFindsLoss(t *testing.T) {
	t.Parallel()
	for _, w := range soakWays() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			sides, cqs := scriptedSides(t, true)
			give, n := sides[0].give, 0
			sides[0].give = func() error {
				if n++; n == 100 {
					for !cqs[1].Asleep() { // the other side looks no more
						runtime.Gosched()
					}
					cqs[1].Swallow(1)
				}
				return give()
			}
			r, err := soakOne(w, sides, 1000, time.Minute)
			if err != nil || r.rescued != 1 {
				t.Errorf("%v, %v; want one rescue", r, err)
			}
		})
	}
}

func scriptedSides(t testing.TB, descriptors bool) (sides [2]*soakSide, cqs [2]*scripted.CQ) {
	t.Helper()
	p := scripted.New(&scripted.Config{Descriptors: descriptors})
	dev, err := verbs.Open(p, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx := p.Device("").Context()
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	var raw [2]*scripted.QP
	for i := range sides {
		cq, err := dev.CreateCQ(2*soakDepth, nil)
		if err != nil {
			t.Fatal(err)
		}
		qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 1, MaxRecvWR: soakDepth})
		if err != nil {
			t.Fatal(err)
		}
		a := verbs.QPAttr{State: ib.StateInit, Port: 1}
		if err := qp.Modify(&a, ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrAccess); err != nil {
			t.Fatal(err)
		}
		raw[i], cqs[i] = ctx.QP(-1), ctx.CQ(-1)
		sides[i] = &soakSide{
			cq:   cq,
			give: func() error { raw[1-i].CompleteRecv(1, scripted.Received(soakMessage), false); return nil },
			took: func() error { return qp.PostRecv(verbs.RecvWR{}) },
		}
		for range soakDepth {
			if err := sides[i].took(); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { qp.Close(); cq.Close() })
	}
	t.Cleanup(func() {
		pd.Close()
		for _, v := range p.Violations() {
			t.Errorf("contract: %s", v)
		}
	})
	return sides, cqs
}
