package lab_test

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibverbs"
)

// TestGuestC200_Resolution: the results of an address resolution that need a network with a
// neighbour who is silent, and one that nothing leads to.
func TestGuestC200_Resolution(t *testing.T) {
	inGuest(t)
	p, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const silent, elsewhere = "10.9.0.250:7", "192.0.2.1:7"
	for _, c := range []struct {
		what    string
		to      string
		limit   time.Duration
		event   bool // it is an event that says so, and not before the limit
		want    error
		atLeast time.Duration
	}{
		{"a silent neighbour", silent, 500 * time.Millisecond, true, syscall.ETIMEDOUT, 500 * time.Millisecond},
		{"a silent neighbour, one try", silent, 0, true, syscall.ETIMEDOUT, 0},
		{"no route", elsewhere, 2 * time.Second, false, syscall.ENETUNREACH, 0},
	} {
		ch, err := cm.NewEventChannel(p)
		if err != nil {
			t.Fatal(err)
		}
		defer ch.Close()
		id, err := ch.NewID(ib.PortSpaceTCP)
		if err != nil {
			t.Fatal(err)
		}
		defer id.Close()
		start := time.Now()
		err = id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(c.to), c.limit)
		if c.event {
			if err != nil {
				t.Errorf("%s: %v, want an event", c.what, err)
				continue
			}
			ev, everr := ch.Event(ctx)
			if everr != nil {
				t.Fatalf("%s: %v", c.what, everr)
			}
			if ev.Type != cm.AddrError || ev.ID != id {
				t.Errorf("%s: event %v", c.what, ev.Type)
			}
			err = ev.Err
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
		if took := time.Since(start); took < c.atLeast {
			t.Errorf("%s: after %v, the limit is %v", c.what, took, c.limit)
		}
		if ev, ok, err := ch.TryEvent(); ok || err != nil {
			t.Errorf("%s: another event: %v, %v", c.what, ev.Type, err)
		}
	}
}
