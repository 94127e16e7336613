package cm

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

var testDepths = depths{responder: 128, initiator: 64}

func TestC207_DefaultParameters(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]*ConnParam{"nil": nil, "zero": {}} {
		s, err := p.settle(opConnect, MaxPrivateConnect, testDepths, nil)
		if err != nil {
			t.Fatal(name, err)
		}
		want := driver.ConnParam{ResponderResources: 128, InitiatorDepth: 64, RetryCount: 7, RNRRetryCount: 7}
		if c := s.conn; c.ResponderResources != want.ResponderResources || c.InitiatorDepth != want.InitiatorDepth ||
			c.RetryCount != want.RetryCount || c.RNRRetryCount != want.RNRRetryCount || c.QPN != 0 || c.FlowControl || c.SRQ {
			t.Errorf("%s: %+v, want %+v", name, c, want)
		}
		if s.minRNR != 640*time.Microsecond || s.ackTimeout != 0 || s.noReceives {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestC208_ZeroIsNeverNone: a zeroed structure never means no retries.
func TestC208_ZeroIsNeverNone(t *testing.T) {
	t.Parallel()
	s, err := (&ConnParam{RetryCount: -1, RNRRetryCount: -1, ResponderResources: -1, InitiatorDepth: -1}).settle(opConnect, 56, testDepths, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c := s.conn; c.RetryCount != 0 || c.RNRRetryCount != 0 || c.ResponderResources != 0 || c.InitiatorDepth != 0 {
		t.Errorf("negative: %+v, want none of each", c)
	}
	// What a peer sent can be passed on.
	p := paramOf(&s.conn, nil)
	if p.RetryCount != -1 || p.RNRRetryCount != -1 || p.ResponderResources != -1 || p.InitiatorDepth != -1 {
		t.Errorf("what a peer sent without retries: %+v", p)
	}
}

func TestC209_DepthsAreBounded(t *testing.T) {
	t.Parallel()
	offer := &driver.ConnParam{ResponderResources: 6, InitiatorDepth: 4}
	for _, c := range []struct {
		p          ConnParam
		resp, init uint8
	}{
		{ConnParam{}, 6, 4},
		{ConnParam{ResponderResources: 2, InitiatorDepth: 3}, 2, 3},
		{ConnParam{ResponderResources: 100, InitiatorDepth: 60}, 6, 4}, // the peer offered less
		{ConnParam{ResponderResources: -1, InitiatorDepth: -1}, 0, 0},
	} {
		s, err := c.p.settle(opAccept, MaxPrivateAccept, testDepths, offer)
		if err != nil || s.conn.ResponderResources != c.resp || s.conn.InitiatorDepth != c.init {
			t.Errorf("%+v: %d/%d, %v; want %d/%d", c.p, s.conn.ResponderResources, s.conn.InitiatorDepth, err, c.resp, c.init)
		}
	}
}

func TestC210_ParametersOutOfRange(t *testing.T) {
	t.Parallel()
	for _, p := range []ConnParam{
		{ResponderResources: 129}, {InitiatorDepth: 65}, {RetryCount: 8}, {RNRRetryCount: 15},
		{MinRNRTimer: -1}, {MinRNRTimer: time.Second}, {AckTimeout: -time.Second}, {QPN: 1 << 24},
	} {
		_, err := p.settle(opConnect, MaxPrivateConnect, testDepths, nil)
		if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "ConnParam.") {
			t.Errorf("%+v: %v, want EINVAL that names the field", p, err)
		}
	}
}

// TestC206_PrivateDataLimits: the limits of all transports hold, and the error gives
// all of them.
func TestC206_PrivateDataLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		op    string
		ps    ib.PortSpace
		limit int
	}{
		{opConnect, ib.PortSpaceTCP, 56}, {opAccept, ib.PortSpaceTCP, 196}, {opReject, ib.PortSpaceTCP, 148},
		{opConnect, ib.PortSpaceIB, 56},
		{opConnect, ib.PortSpaceUDP, 56}, {opAccept, ib.PortSpaceUDP, 136}, {opReject, ib.PortSpaceUDP, 136},
	} {
		if got := privateLimit(c.op, c.ps); got != c.limit {
			t.Errorf("%s, %v: %d, want %d", c.op, c.ps, got, c.limit)
		}
		if err := checkPrivate(c.op, make([]byte, c.limit), c.limit); err != nil {
			t.Errorf("%s, %v: %v", c.op, c.ps, err)
		}
		err := checkPrivate(c.op, make([]byte, c.limit+1), c.limit)
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s, %v: %v, want EINVAL", c.op, c.ps, err)
		}
		for _, want := range []string{" 56 ", " 196 ", " 148 ", c.op} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
	}
}
