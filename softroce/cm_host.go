package softroce

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/internal/timers"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// OpenCM opens the connection manager. All openings share it, and with it ports,
// sockets and the device.
func (p *Provider) OpenCM() (driver.CM, error) {
	d, err := p.device()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cm == nil {
		p.cm = newCMCore(d.rand64)
		p.cm.foreign = &p.foreign
	}
	if p.dev != nil {
		p.attachCM(p.cm, p.dev)
	}
	return p.cm, nil
}

// attachCM gives the manager a device that it may not have yet. p.mu is held.
func (p *Provider) attachCM(m *cmCore, d *device) {
	if d.attachManager(m) {
		m.attach(newDeviceHost(d, m), d.guid)
	}
}

// deviceHost is a device as the connection manager sees it.
type deviceHost struct {
	*device
	alarm timers.Timer
}

var _ cmHost = (*deviceHost)(nil)

func newDeviceHost(d *device, m *cmCore) *deviceHost {
	h := &deviceHost{device: d}
	h.alarm.F = func(time.Duration) { m.advance() }
	return h
}

func (h *deviceHost) wake(at time.Duration, set bool) {
	if set {
		h.schedule(&h.alarm, at)
	} else {
		h.cancel(&h.alarm)
	}
}

func (h *deviceHost) index(local netip.Addr) (int, bool) {
	i, _, ok := h.port.find(local)
	return i, ok
}

func (h *deviceHost) limits(local netip.Addr) cmLimits {
	l := cmLimits{mtu: h.port.mtu()}
	if _, g, ok := h.port.find(local); ok {
		l.mtu = pathMTU(g.mtu)
	}
	h.eps.mu.Lock()
	if e := h.eps.m[local]; e != nil {
		l.recvBuffer = e.limit.RecvBuffer
	}
	h.eps.mu.Unlock()
	return l
}

func (h *deviceHost) peerBuffer(remote netip.Addr, bytes int) { h.setPeerBuffer(remote, bytes) }

func (h *deviceHost) addresses() ([]netip.Addr, error) {
	entries, err := h.port.addrs()
	all := make([]netip.Addr, 0, len(entries))
	for _, e := range entries {
		all = append(all, e.addr)
	}
	return all, err
}

func (h *deviceHost) open(local netip.Addr) error {
	_, err := h.endpoint(local)
	return err
}

func (h *deviceHost) sendMAD(local, remote netip.Addr, mad []byte, tos uint8) {
	_ = h.device.sendMAD(local, remote, mad, tos) // as good as lost; the device counts it
}

func (h *deviceHost) vacant(loopback netip.Addr) bool {
	return h.cfg.ListenPacket == nil && netio.Vacant(netip.AddrPortFrom(loopback, wire.Port))
}

// route asks the system, or, if the device is not on the system's network, its own
// addresses.
func (h *deviceHost) route(dst netip.Addr) (netip.Addr, error) {
	if _, g, ok := h.port.find(dst); ok {
		return g.addr, nil
	}
	if len(h.cfg.Addrs) > 0 || h.cfg.ListenPacket != nil {
		entries, _ := h.port.addrs()
		for _, g := range entries {
			if g.addr.Is4() == dst.Is4() && g.addr.Zone() == dst.Zone() && !g.addr.IsLoopback() {
				return g.addr, nil
			}
		}
		return netip.Addr{}, unreachable(dst)
	}
	if isBroadcast(dst) {
		return netip.Addr{}, unreachable(dst)
	}
	src, err := netio.RouteSource(dst)
	if err != nil {
		return src, err
	}
	return canonical(src), nil
}

func unreachable(dst netip.Addr) error {
	return fmt.Errorf("no route to %v: %w", dst, syscall.ENETUNREACH)
}

// isBroadcast reports whether dst is the broadcast address of a network of this host,
// to which there is a route, but no peer.
func isBroadcast(dst netip.Addr) bool {
	if !dst.Is4() || dst.As4()[3]&3 != 3 {
		return false // not of a network with room for two hosts
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.To4() == nil || len(n.Mask) != net.IPv4len {
			continue
		}
		last := n.IP.To4()
		for i := range last {
			last[i] |= ^n.Mask[i]
		}
		if ones, _ := n.Mask.Size(); ones < 31 && netip.AddrFrom4([4]byte(last)) == dst {
			return true
		}
	}
	return false
}
