package wait

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func TestParkDescriptor(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*Parker){"Poller": func(*Parker) {}, "Naps": (*Parker).Nap} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parkDescriptor(t, set)
		})
	}
}

func parkDescriptor(t *testing.T, set func(*Parker)) {
	e := newEventfd(t)
	p := NewParker(e, e.take)
	set(p)
	bg := context.Background()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { unix.EventfdSignal(int(e)) })
		parkWant(t, p, bg, 0, Found, nil)
		parkWant(t, p, bg, time.Microsecond, Expired, nil)
		wg.Go(p.Kick)
		parkWant(t, p, bg, 0, Kicked, nil)
		ctx, cancel := context.WithCancel(bg)
		wg.Go(cancel)
		parkWant(t, p, ctx, 0, Kicked, context.Canceled)
		wg.Wait()
		p.Kick() // what cancel left behind may be here, or not: make it sure
		parkWant(t, p, bg, 0, Kicked, nil)
	}
	wg.Go(p.Close)
	parkWant(t, p, bg, 0, Kicked, net.ErrClosed)
	wg.Wait()

	r, w := hangUp(t)
	looks := 0
	p = NewParker(pipeEnd(r), func() bool {
		if looks++; looks == 1 { // by Go's poller, before it sleeps
			wg.Go(w)
		}
		return false
	})
	set(p)
	defer p.Close()
	parkWant(t, p, bg, 0, Kicked, driver.ErrDeviceGone)
	wg.Wait()
}
