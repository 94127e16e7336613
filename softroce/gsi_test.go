package softroce

import (
	"bytes"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
)

func TestMADPackets(t *testing.T) {
	t.Parallel()
	mad := bytes.Repeat([]byte{7}, madLen)
	b := appendMAD(nil, 0x1234567, mad)
	if len(b) != gsiPacketLen {
		t.Fatalf("%d bytes", len(b))
	}
	var p wire.Packet
	if err := p.Decode(b); err != nil || p.PSN != 0x234567 {
		t.Fatalf("%+v, %v", p, err)
	}
	if got, ok := madOf(&p); !ok || !bytes.Equal(got, mad) {
		t.Error("it does not come back")
	}
	for what, f := range map[string]func(p *wire.Packet){
		"opcode":     func(p *wire.Packet) { p.Opcode = 0x65 },
		"queue pair": func(p *wire.Packet) { p.DestQP = 2 },
		"Q_Key":      func(p *wire.Packet) { p.DETH.QKey = ib.QKeyCM },
		"source":     func(p *wire.Packet) { p.DETH.SrcQP = 2 },
		"too short":  func(p *wire.Packet) { p.Payload = p.Payload[1:] },
		"too long":   func(p *wire.Packet) { p.Payload = append(p.Payload[:madLen:madLen], 0) },
	} {
		q := p
		f(&q)
		if _, ok := madOf(&q); ok {
			t.Errorf("wrong %s is taken", what)
		}
	}
}

// TestDeviceHostRoute: a device on a network of its own sends from the address of the
// right family and link; one on the system's asks it.
func TestDeviceHostRoute(t *testing.T) {
	t.Parallel()
	n := newNetwork()
	one, two := netip.MustParseAddr("fd00::5"), netip.MustParseAddr("fe80::5%x")
	p := n.provider(t, 1, addrA, one, two)
	h := newDeviceHost(p.dev, newCMCore(p.dev.rand64))
	if _, err := h.addresses(); err != nil {
		t.Fatal(err)
	}
	for dst, want := range map[string]netip.Addr{
		"10.0.0.1": addrA, "10.0.0.9": addrA, "fd00::5": one, "fd00::77": one, "fe80::77%x": two,
	} {
		if got, err := h.route(netip.MustParseAddr(dst)); got != want || err != nil {
			t.Errorf("%s: from %v, %v", dst, got, err)
		}
	}
	_, err := h.route(netip.MustParseAddr("fe80::77%y"))
	fails(t, "another link", err, syscall.ENETUNREACH)

	p = newProvider(t, nil)
	h = newDeviceHost(p.dev, newCMCore(p.dev.rand64))
	lo := netip.MustParseAddr("127.1.2.3")
	if got, err := h.route(lo); err != nil || !got.IsLoopback() {
		t.Errorf("to %v from %v, %v", lo, got, err)
	}
	// A route to the world may be there or not; what is there is one of our addresses.
	if got, err := h.route(netip.MustParseAddr("8.8.8.8")); err == nil {
		if _, known := h.index(got); !known {
			all, _ := h.addresses()
			if _, known = h.index(got); !known {
				t.Errorf("from %v, which is none of %v", got, all)
			}
		}
	} else if !errors.Is(err, syscall.ENETUNREACH) && !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("no route: %v", err)
	}
}
