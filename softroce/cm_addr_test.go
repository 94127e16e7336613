package softroce

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// fakeHost is a host with chosen addresses, some of which other processes have.
type fakeHost struct {
	addrs    []netip.Addr
	taken    map[netip.Addr]bool // by other processes
	held     map[netip.Addr]bool
	routes   map[netip.Addr]netip.Addr // where to send from
	sent     int
	sendFrom netip.Addr
}

var _ cmHost = (*fakeHost)(nil)

func (h *fakeHost) now() time.Duration                         { return 0 }
func (h *fakeHost) wake(time.Duration, bool)                   {}
func (h *fakeHost) index(a netip.Addr) (int, bool)             { i := slices.Index(h.addrs, a); return i, i >= 0 }
func (h *fakeHost) limits(netip.Addr) cmLimits                 { return cmLimits{mtu: ib.MTU1024, recvBuffer: 1 << 20} }
func (h *fakeHost) peerBuffer(netip.Addr, int)                 {}
func (h *fakeHost) addresses() ([]netip.Addr, error)           { return slices.Clone(h.addrs), nil }
func (h *fakeHost) holds(a netip.Addr) bool                    { return h.held[a] }
func (h *fakeHost) facts(n ib.QPN) (qpFacts, bool)             { return qpFacts{Type: ib.RC}, true }
func (h *fakeHost) sendMAD(l, r netip.Addr, _ []byte, _ uint8) { h.sent++; h.sendFrom = l }

func (h *fakeHost) open(a netip.Addr) error {
	if h.taken[a] {
		return &netio.InUseError{Addr: netip.AddrPortFrom(a, 4791), Holder: "process 4711 (verbena)", Err: syscall.EADDRINUSE}
	}
	if !a.IsLoopback() && !slices.Contains(h.addrs, a) {
		return syscall.EADDRNOTAVAIL
	}
	h.held[a] = true
	return nil
}

func (h *fakeHost) vacant(a netip.Addr) bool { return !h.taken[a] }

func (h *fakeHost) loopback() (netip.Addr, error) {
	for a := range h.held {
		if a.IsLoopback() && a.Is4() {
			return a, nil
		}
	}
	a := netip.MustParseAddr("127.77.0.1")
	return a, h.open(a)
}

func (h *fakeHost) route(dst netip.Addr) (netip.Addr, error) {
	if slices.Contains(h.addrs, dst) {
		return dst, nil
	}
	if src, ok := h.routes[dst]; ok {
		return src, nil
	}
	return netip.Addr{}, unreachable(dst)
}

func newFakeHost() *fakeHost {
	h := &fakeHost{taken: make(map[netip.Addr]bool), held: make(map[netip.Addr]bool), routes: make(map[netip.Addr]netip.Addr)}
	for _, s := range []string{"10.9.0.2", "10.8.0.2", "fd00::2", "fe80::1%eth0", "fe80::1%eth1", "fe80::9%eth0"} {
		h.addrs = append(h.addrs, netip.MustParseAddr(s))
	}
	h.routes[netip.MustParseAddr("10.9.0.9")] = h.addrs[0]
	h.routes[netip.MustParseAddr("fd00::9")] = h.addrs[2]
	h.routes[netip.MustParseAddr("fe80::77%eth0")] = h.addrs[5]
	return h
}

func (h *fakeHost) channel(t *testing.T) *cmChannel {
	t.Helper()
	m := newCMCore(rand.New(rand.NewPCG(1, 2)).Uint64)
	m.attach(h, 1)
	ch, err := m.OpenChannel()
	if err != nil {
		t.Fatal(err)
	}
	return ch.(*cmChannel)
}

func idOn(t *testing.T, ch *cmChannel) *cmID {
	t.Helper()
	id, err := ch.CreateID(0, ib.PortSpaceTCP, ib.RC)
	if err != nil {
		t.Fatal(err)
	}
	return id.(*cmID)
}

// bindTo gives the error of binding a new id, and the id.
func bindTo(t *testing.T, ch *cmChannel, addr string) (*cmID, error) {
	t.Helper()
	id := idOn(t, ch)
	return id, id.BindAddr(netip.MustParseAddrPort(addr))
}

func TestC192_BindErrors(t *testing.T) {
	t.Parallel()
	h := newFakeHost()
	ch := h.channel(t)
	for addr, want := range map[string]error{
		"10.9.0.77:1":         syscall.EADDRNOTAVAIL,
		"224.0.0.5:1":         syscall.EADDRNOTAVAIL,
		"[ff02::1%eth0]:1":    syscall.EADDRNOTAVAIL,
		"255.255.255.255:1":   syscall.EADDRNOTAVAIL,
		"[fd00::77]:1":        syscall.EADDRNOTAVAIL,
		"[fe80::1]:1":         syscall.EINVAL,
		"[fe80::9%eth1]:1":    syscall.ENODEV,
		"[fe80::1%nosuch0]:1": syscall.ENODEV,
		"10.9.0.2:1":          nil,
		"[::ffff:10.9.0.2]:2": nil,
		"[fd00::2%eth0]:1":    nil, // the zone means nothing
		"[fe80::1%eth1]:1":    nil,
		"[fe80::1%eth0]:1":    nil, // the same address on another link
		"0.0.0.0:3":           nil,
		"[::]:4":              nil,
		"127.0.0.1:1":         nil,
		"127.5.6.7:1":         nil,
		"[::1]:1":             nil,
	} {
		id, err := bindTo(t, ch, addr)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", addr, err, want)
		}
		if i := id.Info(); err == nil && i.Local.Port() != netip.MustParseAddrPort(addr).Port() {
			t.Errorf("%s: bound to %v", addr, i.Local)
		}
	}
	fails(t, "no address", idOn(t, ch).BindAddr(netip.AddrPort{}), syscall.EINVAL)
	h.taken[netip.MustParseAddr("10.8.0.2")] = true
	_, err := bindTo(t, ch, "10.8.0.2:1")
	var used *netio.InUseError
	if !errors.As(err, &used) || !strings.Contains(err.Error(), "4711") {
		t.Errorf("an address of another process: %v", err)
	}
}

func TestC193_PortZero(t *testing.T) {
	t.Parallel()
	ch := newFakeHost().channel(t)
	seen := make(map[uint16]bool)
	for range 100 {
		id, err := bindTo(t, ch, "10.9.0.2:0")
		if err != nil {
			t.Fatal(err)
		}
		p := id.Info().Local.Port()
		if p < firstEphemeral || p > lastEphemeral || seen[p] {
			t.Fatalf("port %d", p)
		}
		seen[p] = true
	}
	id := idOn(t, ch)
	if err := id.Listen(0); err != nil {
		t.Fatal(err)
	}
	if i := id.Info(); i.Local.Addr() != anyIPv4 || i.Local.Port() == 0 || i.Device != "" || i.Port != 0 {
		t.Errorf("listener without bind: %+v", i)
	}
	if id.backlog != maxBacklog {
		t.Errorf("backlog %d", id.backlog)
	}
}

func TestC194_AddressInUse(t *testing.T) {
	t.Parallel()
	h := newFakeHost()
	ch := h.channel(t)
	first, err := bindTo(t, ch, "10.9.0.2:7000")
	if err != nil {
		t.Fatal(err)
	}
	_, err = bindTo(t, ch, "10.9.0.2:7000")
	fails(t, "the same", err, syscall.EADDRINUSE)
	if !strings.Contains(err.Error(), "RDMA port space TCP") || !strings.Contains(err.Error(), "10.9.0.2:7000") {
		t.Errorf("the error does not say where: %v", err)
	}
	for addr, want := range map[string]error{
		"0.0.0.0:7000":   syscall.EADDRNOTAVAIL,
		"[::]:7000":      syscall.EADDRNOTAVAIL, // takes IPv4 too
		"10.8.0.2:7000":  nil,
		"[fd00::2]:7000": nil,
		"127.0.0.1:7000": nil,
	} {
		id, err := bindTo(t, ch, addr)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", addr, err, want)
		}
		id.Close()
	}
	only := idOn(t, ch)
	if err := only.SetOption(0, optionAFOnly, []byte{1, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	if err := only.BindAddr(netip.MustParseAddrPort("[::]:7000")); err != nil {
		t.Errorf("C-226: [::] with AFONLY beside IPv4: %v", err)
	}
	udp, err := ch.CreateID(0, ib.PortSpaceUDP, ib.UD)
	if err == nil {
		err = udp.BindAddr(netip.MustParseAddrPort("10.9.0.2:7000"))
	}
	if err != nil {
		t.Errorf("another port space: %v", err)
	}
	first.Close()
	if _, err := bindTo(t, ch, "10.9.0.2:7000"); err != nil {
		t.Errorf("after the first is closed: %v", err)
	}
}

func TestC195_ReuseAddr(t *testing.T) {
	t.Parallel()
	ch := newFakeHost().channel(t)
	reuse := func(addr string) (*cmID, error) {
		t.Helper()
		id := idOn(t, ch)
		if err := id.SetOption(0, optionReuseAddr, []byte{0, 0, 0, 1}); err != nil {
			t.Fatal(err)
		}
		return id, id.BindAddr(netip.MustParseAddrPort(addr))
	}
	a, err := reuse("10.9.0.2:7000")
	if err != nil {
		t.Fatal(err)
	}
	b, err := reuse("10.9.0.2:7000")
	if err != nil {
		t.Fatalf("both bind: %v", err)
	}
	if _, err := bindTo(t, ch, "10.9.0.2:7000"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("one without the option: %v", err)
	}
	fails(t, "listen while another is bound", a.Listen(0), syscall.EADDRINUSE)
	b.Close()
	if err := a.Listen(0); err != nil {
		t.Errorf("listen alone: %v", err)
	}
	_, err = reuse("10.9.0.2:7000")
	fails(t, "bind beside a listener", err, syscall.EADDRINUSE)
}

// TestEphemeralPorts: when all are in use, others are taken, and then there are none.
func TestEphemeralPorts(t *testing.T) {
	t.Parallel()
	p := cmPorts{owners: make(map[cmPort][]*cmID), rand: rand.New(rand.NewPCG(3, 4)).Uint64}
	id := &cmID{space: ib.PortSpaceTCP}
	// All but three are in use.
	for port := firstLastResort; port <= lastLastResort; port++ {
		if port != 2000 && port != 40000 && port != 60999 {
			p.owners[cmPort{ib.PortSpaceTCP, uint16(port)}] = []*cmID{id}
		}
	}
	var got []uint16
	for range 3 {
		port, errno := p.claim(id, anyIPv4, 0)
		if errno != 0 {
			t.Fatal(errno)
		}
		got = append(got, port)
	}
	slices.Sort(got[:2])
	if !slices.Equal(got, []uint16{40000, 60999, 2000}) {
		t.Errorf("ports %v", got)
	}
	if _, errno := p.claim(id, anyIPv4, 0); errno != syscall.EADDRNOTAVAIL {
		t.Errorf("one more: %v", errno)
	}
}

func TestC200_ResolveResults(t *testing.T) {
	t.Parallel()
	far := netip.MustParseAddr
	for _, s := range []struct {
		src, dst      string
		local, remote string // addresses; empty: as dst
		err           error
	}{
		{dst: "10.9.0.9:5", local: "10.9.0.2"},
		{dst: "[fd00::9]:5", local: "fd00::2"},
		{dst: "10.9.0.2:5", local: "10.9.0.2"}, // own address
		{dst: "192.0.2.1:5", err: syscall.ENETUNREACH},
		{dst: "255.255.255.255:5", err: syscall.ENETUNREACH},
		{dst: "224.0.0.1:5", err: syscall.ENETUNREACH},
		{dst: "[ff02::1%eth0]:5", err: syscall.ENETUNREACH},
		{src: "10.9.0.77:0", dst: "10.9.0.9:5", err: syscall.EADDRNOTAVAIL},
		{src: "10.8.0.2:77", dst: "10.9.0.9:5", local: "10.8.0.2"},
		{src: "0.0.0.0:78", dst: "10.9.0.9:5", local: "10.9.0.2"},
		{src: "[fd00::2]:0", dst: "10.9.0.9:5", err: syscall.EINVAL},
		{src: "[::]:0", dst: "10.9.0.9:5", err: syscall.EINVAL},
		{src: "10.9.0.2:0", dst: "192.0.2.1:5", err: syscall.ENETUNREACH},
		{dst: "127.0.0.1:5", local: "127.77.0.1"}, // nobody here has it
		{dst: "127.5.5.5:5", local: "127.77.0.1"},
		{dst: "0.0.0.0:5", local: "127.77.0.1", remote: "127.0.0.1"},
		{dst: "[::1]:5", local: "::1"},
		{dst: "[::]:5", local: "::1", remote: "::1"},
		{src: "127.3.0.1:0", dst: "127.0.0.1:5", local: "127.3.0.1"},
		{src: "127.3.0.1:0", dst: "10.9.0.9:5", err: syscall.ENETUNREACH},
		{src: "127.3.0.1:0", dst: "10.9.0.2:5", local: "127.3.0.1"},
		// C-227
		{dst: "[fe80::77%eth0]:5", local: "fe80::9%eth0"},
		{dst: "[fe80::77]:5", err: syscall.EINVAL},
		{src: "[fe80::1%eth0]:0", dst: "[fe80::77]:5", local: "fe80::1%eth0", remote: "fe80::77%eth0"},
		{src: "[fe80::1]:0", dst: "[fe80::77%eth0]:5", err: syscall.EINVAL},
	} {
		h := newFakeHost()
		ch := h.channel(t)
		id := idOn(t, ch)
		var src netip.AddrPort
		if s.src != "" {
			src = netip.MustParseAddrPort(s.src)
		}
		dst := netip.MustParseAddrPort(s.dst)
		name := s.src + "->" + s.dst
		err := id.ResolveAddr(src, dst, 0)
		if !errors.Is(err, s.err) {
			t.Errorf("%s: %v, want %v", name, err, s.err)
			continue
		}
		ev, ok, _ := ch.Next()
		if s.err != nil {
			// At once, without an event, and nothing has changed.
			if ok || id.state != idIdle || id.Info().Device != "" {
				t.Errorf("%s: event %v, state %v", name, ev.Type, id.state)
			}
			continue
		}
		i := id.Info()
		remote := dst.Addr()
		if s.remote != "" {
			remote = far(s.remote)
		}
		if !ok || ev.Type != ib.CMAddrResolved || i.Local.Addr() != far(s.local) || i.Remote != netip.AddrPortFrom(remote, 5) ||
			i.Local.Port() == 0 || src.Port() != 0 && i.Local.Port() != src.Port() || i.Device != DeviceName {
			t.Errorf("%s: %v, %+v", name, ev.Type, i)
		}
		if !h.held[i.Local.Addr()] {
			t.Errorf("%s: %v is not open", name, i.Local.Addr())
		}
	}
	ch := newFakeHost().channel(t)
	fails(t, "no destination", idOn(t, ch).ResolveAddr(netip.AddrPort{}, netip.AddrPort{}, 0), syscall.EINVAL)
}

// TestLoopbackChoice: who has an address is met there, who has not is met from another.
func TestLoopbackChoice(t *testing.T) {
	t.Parallel()
	local := func(h *fakeHost, dst string) string {
		t.Helper()
		id := idOn(t, h.channel(t))
		if err := id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(dst), 0); err != nil {
			return err.Error()
		}
		return id.Info().Local.Addr().String()
	}
	h := newFakeHost()
	h.held[loopbackIPv4] = true
	if got := local(h, "127.0.0.1:5"); got != "127.0.0.1" {
		t.Errorf("own 127.0.0.1 is met from %s", got)
	}
	if got := local(h, "127.9.9.9:5"); got != "127.0.0.1" {
		t.Errorf("another's loopback address is met from %s", got)
	}
	h = newFakeHost()
	h.taken[netip.MustParseAddr("10.9.0.2")] = true
	if got := local(h, "10.9.0.2:5"); got != "127.77.0.1" {
		t.Errorf("an address of this host that another process has is met from %s", got)
	}
	h.taken[netip.MustParseAddr("fd00::2")] = true
	if got := local(h, "[fd00::2]:5"); !strings.Contains(got, "4711") {
		t.Errorf("over IPv6 there is no such way: %s", got)
	}
	h.taken[loopbackIPv6] = true
	if got := local(h, "[::1]:5"); !strings.Contains(got, "4711") {
		t.Errorf("::1 of another process: %s", got)
	}
	// A peer elsewhere, by an address that another process has.
	if got := local(h, "10.9.0.9:5"); !strings.Contains(got, "4711") {
		t.Errorf("%s", got)
	}
}

// TestC203_NobodyOnTheLoopback is refused at once, without a datagram that nobody would
// answer.
func TestC203_NobodyOnTheLoopback(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{false, true} {
		h := newFakeHost()
		h.taken[loopbackIPv4] = taken
		ch := h.channel(t)
		id := idOn(t, ch)
		for _, err := range []error{
			id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(loopbackIPv4, 5), 0), id.ResolveRoute(0),
			id.Connect(driver.ConnParam{QPN: 5}),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		ch.Next()
		ch.Next()
		ev, ok, err := ch.Next()
		if taken {
			if ok || err != nil || h.sent != 1 {
				t.Errorf("%v %v, %d datagrams", ev, err, h.sent)
			}
			continue
		}
		if !ok || ev.Type != ib.CMRejected || ev.Status != 8 || len(ev.Private) != 148 || h.sent != 0 {
			t.Errorf("%+v, %v, %d datagrams", ev, err, h.sent)
		}
		if err := id.Disconnect(); err != nil {
			t.Error(err)
		}
	}
}

// TestBoundThenResolve: the port stays, the wildcard becomes an address.
func TestBoundThenResolve(t *testing.T) {
	t.Parallel()
	h := newFakeHost()
	ch := h.channel(t)
	for _, bind := range []string{"0.0.0.0:700", "10.9.0.2:701"} {
		id, err := bindTo(t, ch, bind)
		if err != nil {
			t.Fatal(err)
		}
		if err := id.ResolveAddr(netip.MustParseAddrPort("10.8.0.2:5"), netip.MustParseAddrPort("10.9.0.9:5"), 0); err != nil {
			t.Fatal(err)
		}
		if i := id.Info(); i.Local.Addr().String() != "10.9.0.2" || i.Local.Port() != netip.MustParseAddrPort(bind).Port() {
			t.Errorf("%s: %+v", bind, i)
		}
	}
	if err := idOn(t, ch).ResolveAddr(netip.MustParseAddrPort("10.9.0.2:701"), netip.MustParseAddrPort("10.9.0.9:5"), 0); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a source port that is in use: %v", err)
	}
}

func TestC226_WildcardOpens(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		bind   string
		only   bool
		taken  []string
		opened []string
		err    bool
	}{
		{bind: "0.0.0.0:1", opened: []string{"10.9.0.2", "10.8.0.2", "127.0.0.1"}},
		{bind: "0.0.0.0:1", taken: []string{"10.9.0.2", "127.0.0.1"}, opened: []string{"10.8.0.2", "127.77.0.1"}},
		{bind: "0.0.0.0:1", taken: []string{"10.9.0.2", "10.8.0.2", "127.0.0.1", "127.77.0.1"}, err: true},
		{bind: "[::]:1", only: true, opened: []string{"fd00::2", "fe80::1%eth0", "fe80::1%eth1", "fe80::9%eth0", "::1"}},
		{bind: "[::]:1", opened: []string{"10.9.0.2", "10.8.0.2", "127.0.0.1", "fd00::2", "fe80::1%eth0", "fe80::1%eth1", "fe80::9%eth0", "::1"}},
	} {
		h := newFakeHost()
		for _, a := range s.taken {
			h.taken[netip.MustParseAddr(a)] = true
		}
		ch := h.channel(t)
		id := idOn(t, ch)
		if s.only {
			if err := id.SetOption(0, optionAFOnly, []byte{1, 0, 0, 0}); err != nil {
				t.Fatal(err)
			}
		}
		if err := id.BindAddr(netip.MustParseAddrPort(s.bind)); err != nil {
			t.Fatal(err)
		}
		if len(h.held) != 0 {
			t.Errorf("%s: bind opens %v", s.bind, h.held)
		}
		err := id.Listen(0)
		if (err != nil) != s.err {
			t.Errorf("%s: %v", s.bind, err)
		}
		if s.err {
			var used *netio.InUseError
			if !errors.As(err, &used) {
				t.Errorf("%s: the error does not say who has the addresses: %v", s.bind, err)
			}
		}
		var got, want []string
		for a := range h.held {
			got = append(got, a.String())
		}
		want = append(want, s.opened...)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: opened %v, want %v", s.bind, got, want)
		}
		if s.err {
			continue
		}
		// An address that comes later is listened on, too.
		late := netip.MustParseAddr("10.7.0.2")
		h.addrs = append(h.addrs, late)
		ch.core.addressesChanged()
		if h.held[late] == s.only {
			t.Errorf("%s: a new address is opened: %v", s.bind, h.held[late])
		}
	}
}

// TestListenerChoice: which listener gets a request for an address.
func TestC226_ListenerChoice(t *testing.T) {
	t.Parallel()
	h := newFakeHost()
	ch := h.channel(t)
	listen := func(addr string, only bool) *cmID {
		t.Helper()
		id := idOn(t, ch)
		if only {
			if err := id.SetOption(0, optionAFOnly, []byte{1, 0, 0, 0}); err != nil {
				t.Fatal(err)
			}
		}
		if err := id.BindAddr(netip.MustParseAddrPort(addr)); err != nil {
			t.Fatal(err)
		}
		if err := id.Listen(0); err != nil {
			t.Fatal(err)
		}
		return id
	}
	v4, v6, both, one := listen("0.0.0.0:1", false), listen("[::]:1", true), listen("[::]:2", false), listen("10.9.0.2:3", false)
	only := listen("[::]:4", true)
	_ = only
	for _, s := range []struct {
		port   uint16
		local  string
		want   *cmID
		listen bool
	}{
		{1, "10.8.0.2", v4, true}, {1, "fd00::2", v6, true}, {1, "fe80::1%eth1", v6, true},
		{2, "10.8.0.2", both, true}, {2, "fd00::2", both, true},
		{3, "10.9.0.2", one, true}, {3, "10.8.0.2", nil, true}, {3, "fd00::2", nil, true},
		{4, "10.9.0.2", nil, true}, {5, "10.9.0.2", nil, false},
	} {
		got, listens := ch.core.ports.listener(ib.PortSpaceTCP, s.port, netip.MustParseAddr(s.local))
		if got != s.want || listens != s.listen {
			t.Errorf("port %d at %s: %p %v", s.port, s.local, got, listens)
		}
	}
}

// TestRealLoopback connects two devices of this process over sockets of the system,
// and a device with itself.
// TestC203_RealVacantLoopback asks the system.
// TestC227_LinkLocal connects over link-local addresses, whose zones stay.
