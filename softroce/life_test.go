package softroce

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// lateConn is a socket whose Close takes its time.
type lateConn struct {
	net.PacketConn
	closing chan struct{} // closed when Close begins
	free    chan struct{} // closed when it may end
	ended   atomic.Bool
}

func (c *lateConn) Close() error {
	close(c.closing)
	<-c.free
	c.ended.Store(true)
	return c.PacketConn.Close()
}

// While a device is being removed, who closes the provider or plugs a new device in
// waits until that is complete: the sockets are free, as Close promises.
func TestRemovalIsComplete(t *testing.T) {
	t.Parallel()
	for what, f := range map[string]func(*Provider) error{
		"Close":         (*Provider).Close,
		"RestoreDevice": func(p *Provider) error { p.RestoreDevice(); return nil },
		"RemoveDevice":  func(p *Provider) error { p.RemoveDevice(); return nil },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			n := newNetwork()
			c := &lateConn{closing: make(chan struct{}), free: make(chan struct{})}
			p := newProvider(t, &Config{Addrs: []netip.Addr{addrA}, ListenPacket: func(a netip.AddrPort) (_ net.PacketConn, err error) {
				c.PacketConn, err = n.listen(a)
				return c, err
			}})
			if _, err := p.dev.endpoint(addrA); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(p.RemoveDevice)
			<-c.closing
			time.AfterFunc(10*time.Millisecond, func() { close(c.free) })
			if err := f(p); err != nil {
				t.Error(err)
			}
			if !c.ended.Load() {
				t.Error("a socket of the device that was removed is still open")
			}
			wg.Wait()
		})
	}
}

// An object that is made while its opening is being closed ends with it: nobody waits
// for ever.
func TestObjectOfClosedOpening(t *testing.T) {
	t.Parallel()
	ctx := open(t, newProvider(t, nil))
	ch := &compChannel{ctx: ctx}
	ch.notifier.init(nil)
	q := newCQ(ctx, driver.CQConfig{Entries: 1, Channel: ch}, ch)
	ctx.Close() // after CreateCompChannel and CreateCQ have looked
	ctx.keep(ch)
	ctx.keep(q)
	if err := ch.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if _, ok, err := ch.Next(); ok || !errors.Is(err, net.ErrClosed) {
		t.Errorf("event: %v, %v", ok, err)
	}
	if _, err := q.Poll(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("poll: %v", err)
	}
}
