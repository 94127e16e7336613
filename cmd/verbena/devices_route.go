package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// destination is the address that was asked for.
type destination struct {
	text string // as the user wrote it
	addr netip.AddrPort
}

// findDestination parses what the user wrote; names are looked up.
func findDestination(ctx context.Context, s string) (*destination, error) {
	a, err := resolve(ctx, s, false)
	if err != nil {
		return nil, err
	}
	bad := func(why string) error { return &usageError{text: fmt.Sprintf("%q: %s", s, why)} }
	switch ip := a.Addr(); {
	case ip.IsUnspecified():
		return nil, bad("is every address, not the one of a host")
	case ip.IsMulticast():
		return nil, bad("is a group, not the address of a host")
	case ip.IsLinkLocalUnicast() && ip.Is6() && ip.Zone() == "":
		return nil, bad("an address of a link needs the link: " + ip.String() + "%eth0")
	}
	return &destination{text: s, addr: a}, nil
}

// addressReport says which device leads to an address. Device is empty if there is none;
// Error says why. Others are the devices of the other provider.
type addressReport struct {
	Address  string        `json:"address"`
	Provider string        `json:"provider,omitempty"`
	Device   string        `json:"device,omitempty"`
	Port     int           `json:"port,omitempty"`
	Local    string        `json:"local,omitempty"`
	GIDIndex *int          `json:"gid_index,omitempty"`
	GIDType  string        `json:"gid_type,omitempty"`
	NetDev   string        `json:"netdev,omitempty"`
	Why      string        `json:"why,omitempty"`
	Error    string        `json:"error,omitempty"`
	Others   []otherDevice `json:"others,omitempty"`
}

// otherDevice has the address from which the route leaves, too.
type otherDevice struct {
	Provider string `json:"provider"`
	Device   string `json:"device"`
	Port     int    `json:"port"`
}

// routeInfo is what a connection manager says.
type routeInfo struct {
	device string
	port   int
	local  netip.Addr
}

// resolveRoute asks the connection manager of a provider for the way.
func resolveRoute(ctx context.Context, p verbs.Provider, to string) (routeInfo, error) {
	r, err := cm.Resolve(ctx, p, to, nil)
	if err != nil {
		return routeInfo{}, err
	}
	defer r.Close()
	return routeInfo{r.Device().Info().Name, r.Port(), r.LocalAddr().Addr()}, nil
}

// localAddr gives the address from which IP packets to an address leave. A connected UDP
// socket knows; nothing is sent.
func localAddr(ctx context.Context, to string) (net.Addr, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", to)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.LocalAddr(), nil
}

// address finds the device of the default provider that leads to an address.
func (in *inspector) address(ctx context.Context, r *report, to *destination) *addressReport {
	a := &addressReport{Address: to.text, Provider: in.chosen.name}
	var from netip.Addr
	var noRoute error
	if l, err := in.local(ctx, to.addr.String()); err != nil {
		noRoute = err
	} else if u, ok := l.(*net.UDPAddr); ok {
		from = u.AddrPort().Addr().Unmap()
	}
	if from.IsValid() {
		a.Others = r.others(from, in.chosen.name)
	}
	if in.chosen.err != nil {
		a.Error = in.chosen.err.Error()
		return a
	}
	got, err := in.resolve(ctx, in.chosen.p, to.addr.String())
	if err != nil {
		a.Error = noDevice(err, noRoute, from, r.provider(in.chosen.name))
		return a
	}
	a.Device, a.Port = got.device, got.port
	if !got.local.IsValid() {
		a.Why = "the connection manager says so"
		return a
	}
	a.Local = got.local.String()
	g := r.provider(in.chosen.name).gid(got.device, got.port, got.local)
	if g == nil {
		a.Why = "the connection manager comes from " + a.Local
		return a
	}
	a.GIDIndex, a.GIDType, a.NetDev = &g.Index, g.Type, g.NetDev
	a.Why = fmt.Sprintf("the way to %v leaves from %v, which is GID %d of that port", to.addr.Addr(), got.local, g.Index)
	if from.IsValid() && from.WithZone("") != got.local.WithZone("") {
		a.Why += fmt.Sprintf(" (IP packets would leave from %v)", from)
	}
	return a
}

// noDevice says why an address has no device.
func noDevice(err, noRoute error, from netip.Addr, p *providerReport) string {
	s := err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		s += "; -timeout gives it more"
	}
	if noRoute != nil {
		return s + "; there is no route for IP either: " + noRoute.Error()
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return s // it names who has the address
	}
	if owner := p.owner(from); owner != "" {
		return fmt.Sprintf("%s; the route leaves from %v, which is a GID of %s, so the neighbour does not answer or the port is down", s, from, owner)
	}
	return fmt.Sprintf("%s; the route leaves from %v, which is no GID of a device of provider %s", s, from, p.Name)
}

// provider gives the report of one; never nil.
func (r *report) provider(name string) *providerReport {
	for i := range r.Providers {
		if r.Providers[i].Name == name {
			return &r.Providers[i]
		}
	}
	return &providerReport{Name: name}
}

// gid finds the entry of an address at a port. On a port with more than one type the
// connection manager prefers RoCE v2.
func (p *providerReport) gid(device string, port int, a netip.Addr) *gidReport {
	want := ib.GIDFromAddr(a.WithZone(""))
	var found *gidReport
	for i := range p.Devices {
		if p.Devices[i].Name != device {
			continue
		}
		for j := range p.Devices[i].Ports {
			if q := &p.Devices[i].Ports[j]; q.Port == port {
				for k := range q.GIDs {
					if g := &q.GIDs[k]; g.gid == want && (found == nil || g.Type == ib.GIDTypeRoCEv2.String()) {
						found = g
					}
				}
			}
		}
	}
	return found
}

// owner gives the first port that has an address: "rxe0 port 1".
func (p *providerReport) owner(a netip.Addr) string {
	for _, d := range p.owners(a) {
		return fmt.Sprintf("%s port %d", d.Device, d.Port)
	}
	return ""
}

// owners gives the ports that have an address. The embedded device also has the host's
// own, which are not in its table.
func (p *providerReport) owners(a netip.Addr) []otherDevice {
	var list []otherDevice
	for i := range p.Devices {
		for j := range p.Devices[i].Ports {
			d := otherDevice{p.Name, p.Devices[i].Name, p.Devices[i].Ports[j].Port}
			if p.gid(d.Device, d.Port, a) != nil || p.Name == rdma.Soft.String() && a.IsLoopback() {
				list = append(list, d)
			}
		}
	}
	return list
}

// others gives the devices of other providers that have an address.
func (r *report) others(a netip.Addr, chosen string) []otherDevice {
	var list []otherDevice
	for i := range r.Providers {
		if r.Providers[i].Name != chosen {
			list = append(list, r.Providers[i].owners(a)...)
		}
	}
	return list
}

func printAddress(l *lineWriter, a *addressReport) {
	switch {
	case a.Device == "":
		l.linef("\nfor %s   no device: %s", a.Address, a.Error)
	default:
		l.linef("\nfor %s   %s port %d (%s)", a.Address, a.Device, a.Port, a.Provider)
		if a.GIDIndex != nil {
			l.linef("  from %s, GID %d, %s%s", a.Local, *a.GIDIndex, a.GIDType, on(a.NetDev))
		}
		l.linef("  because %s", a.Why)
	}
	for _, o := range a.Others {
		l.linef("  VERBENA_PROVIDER=%s would take %s port %d", o.Provider, o.Device, o.Port)
	}
}

func on(netDev string) string {
	if netDev == "" {
		return ""
	}
	return " on " + netDev
}
