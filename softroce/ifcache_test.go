package softroce

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/internal/netio"
)

func TestFreshInterfaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		var fault error
		list := freshInterfaces(func() ([]netio.Interface, error) {
			asked++
			return []netio.Interface{{Index: asked}}, fault
		})
		for i, step := range []struct {
			wait  time.Duration
			fault error
			want  int
		}{{0, nil, 1}, {0, nil, 1}, {interfaceAge, nil, 1}, {1, nil, 2}, {interfaceAge + 1, errors.New("no"), 0}, {0, nil, 4}} {
			time.Sleep(step.wait)
			fault = step.fault
			got, err := list()
			if err != step.fault || err == nil && got[0].Index != step.want {
				t.Errorf("step %d: %v, %v", i, got, err)
			}
		}
	})
}
