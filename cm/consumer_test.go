package cm_test

import (
	"errors"
	"net"
	"testing"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestConsumer: an event loop is the only one that waits, and hears of Close.
func TestConsumer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	id := w.id(ch)
	release, err := ch.Consume(func() { t.Error("called after release") })
	must(t, err)
	if _, err := ch.Consume(nil); !errors.Is(err, verbs.ErrOneConsumer) {
		t.Errorf("second Consume: %v", err)
	}
	if _, err := ch.Event(t.Context()); !errors.Is(err, verbs.ErrOneConsumer) {
		t.Errorf("Event: %v", err)
	}
	w.cmid(id).Post(driver.CMEvent{Type: cm.AddrChange})
	w.want(ch, cm.AddrChange, id) // by TryEvent
	release()

	closed := make(chan bool)
	_, err = ch.Consume(func() { close(closed) })
	must(t, err)
	must(t, id.Close())
	must(t, ch.Close())
	<-closed
	if _, err := ch.Consume(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Consume of a closed channel: %v", err)
	}
}
