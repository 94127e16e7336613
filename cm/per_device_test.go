package cm_test

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
)

// shared is what a program has on a device.
type shared struct {
	pd     *verbs.PD
	closed int
	err    error
}

func (s *shared) Close() error {
	s.closed++
	return errors.Join(s.pd.Close(), s.err)
}

// TestPerDevice: one thing for each device, whoever asks first; errors are not kept, and Close
// closes each once and gives all errors.
func TestPerDevice(t *testing.T) {
	t.Parallel()
	var devs [2]*verbs.Device
	for i := range devs {
		var err error
		devs[i], err = verbs.Open(scripted.New(nil), "")
		must(t, err)
	}
	scarce, made := errors.New("scarce"), map[*verbs.Device]int{}
	p := cm.NewPerDevice(func(d *verbs.Device) (*shared, error) {
		if made[d]++; made[d] == 1 {
			return nil, scarce
		}
		pd, err := d.AllocPD()
		return &shared{pd: pd}, err
	})
	for _, d := range devs {
		if v, err := p.Get(d); v != nil || !errors.Is(err, scarce) {
			t.Error(v, err)
		}
	}
	var all sync.WaitGroup
	for range 8 {
		for _, d := range devs {
			all.Go(func() {
				v, err := p.Get(d)
				if err != nil || v.pd.Device() != d {
					t.Error(v, err)
				}
			})
		}
	}
	all.Wait()
	var have []*shared
	for d, v := range p.All() {
		if again, err := p.Get(d); again != v || err != nil || made[d] != 2 {
			t.Error(again, err, made[d])
		}
		have = append(have, v)
	}
	if len(have) != 2 {
		t.Fatalf("%d devices", len(have))
	}
	have[0].err = scarce
	if err := p.Close(); !errors.Is(err, scarce) {
		t.Error(err)
	}
	must(t, p.Close())
	for _, v := range have {
		if v.closed != 1 {
			t.Errorf("closed %d times", v.closed)
		}
	}
	if _, err := p.Get(devs[0]); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	for range p.All() {
		t.Error("something is left")
	}
	for _, d := range devs {
		if left := d.Objects(); len(left) != 0 {
			t.Errorf("left %q", left)
		}
	}
	var none *cm.PerDevice[*shared]
	for _, p := range []*cm.PerDevice[*shared]{none, {}, cm.NewPerDevice(func(*verbs.Device) (*shared, error) { return nil, nil })} {
		if _, err := p.Get(nil); !errors.Is(err, syscall.EINVAL) {
			t.Error(err)
		}
		for range p.All() {
			t.Error("something of nothing")
		}
		must(t, p.Close())
	}
}
