package softroce

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// hostOf replaces the interfaces of a provider's device.
func hostOf(p *Provider, ifs ...netio.Interface) *[]netio.Interface {
	list := &ifs
	var mu sync.Mutex
	p.dev.port.interfaces = func() ([]netio.Interface, error) {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(*list), nil
	}
	return list
}

func addrs(s ...string) (all []netip.Addr) {
	for _, a := range s {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func gidsOf(t *testing.T, ctx *deviceContext) map[int]netip.Addr {
	t.Helper()
	gs, err := ctx.GIDs()
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[int]netip.Addr)
	for _, g := range gs {
		if g.Type != ib.GIDTypeRoCEv2 || g.Port != 1 {
			t.Errorf("entry %+v", g)
		}
		m[g.Index] = g.GID.Addr()
	}
	return m
}

func asyncTypes(t *testing.T, ctx *deviceContext) (types []ib.EventType) {
	t.Helper()
	for {
		e, ok, err := ctx.async.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return types
		}
		if e.Port != 1 {
			t.Errorf("event %+v without port", e)
		}
		types = append(types, e.Type)
	}
}

func TestC009_C183_GIDsFollowAddresses(t *testing.T) {
	t.Parallel()
	p := newProvider(t, nil)
	lo := netio.Interface{Name: "lo", Index: 1, MTU: 65536, Up: true, Addrs: addrs("127.0.0.1", "::1")}
	eth := netio.Interface{Name: "eth0", Index: 2, MTU: 1500, Up: true, Addrs: addrs("10.1.0.1", "fd00::1", "fe80::1%eth0")}
	down := netio.Interface{Name: "eth1", Index: 3, MTU: 1500, Addrs: addrs("10.2.0.1")}
	list := hostOf(p, lo, eth, down)
	ctx := open(t, p)
	want := map[int]netip.Addr{0: addrs("10.1.0.1")[0], 1: addrs("fd00::1")[0], 2: addrs("fe80::1")[0]}
	if got := gidsOf(t, ctx); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("GIDs %v, want %v", got, want)
	}
	gs, _ := ctx.GIDs()
	if gs[0].IfIndex != 2 || gs[0].GID != ib.GID(netip.MustParseAddr("::ffff:10.1.0.1").As16()) {
		t.Errorf("entry %+v", gs[0])
	}
	if e := asyncTypes(t, ctx); len(e) != 0 {
		t.Errorf("events %v before anything changed", e)
	}

	// One goes, one comes: the others keep their index.
	eth.Addrs = addrs("fd00::1", "fe80::1%eth0", "10.1.0.7")
	*list = []netio.Interface{lo, eth, down}
	want[0] = addrs("10.1.0.7")[0]
	if got := gidsOf(t, ctx); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("GIDs %v, want %v", got, want)
	}
	if e := asyncTypes(t, ctx); !slices.Equal(e, []ib.EventType{ib.EventGIDChange, ib.EventGIDChange}) {
		t.Errorf("events %v, want a change for each address", e)
	}
	if e := asyncTypes(t, ctx); len(e) != 0 {
		t.Errorf("events %v", e)
	}

	eth.Addrs = addrs("fe80::1%eth0", "10.1.0.7")
	*list = []netio.Interface{lo, eth}
	delete(want, 1)
	if got := gidsOf(t, ctx); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("GIDs %v, want %v", got, want)
	}
	asyncTypes(t, ctx)
	// C-007: no entry is something else than a bad index.
	for index, want := range map[int]error{1: syscall.ENODATA, maxGIDs - 1: syscall.ENODATA, maxGIDs: syscall.EINVAL, -1: syscall.EINVAL} {
		if _, err := p.dev.port.entry(index); !errors.Is(err, want) {
			t.Errorf("GID index %d: %v, want %v", index, err, want)
		}
	}
}

func TestC012_C184_LinkDownAndUp(t *testing.T) {
	t.Parallel()
	p := newProvider(t, nil)
	eth := netio.Interface{Name: "eth0", Index: 2, MTU: 1500, Up: true, Addrs: addrs("10.1.0.1")}
	list := hostOf(p, eth)
	ctx := open(t, p)
	state := func(want ib.PortState, events ...ib.EventType) {
		t.Helper()
		a, err := ctx.QueryPort(1)
		if err != nil || a.State != want {
			t.Errorf("state %v, %v, want %v", a.State, err, want)
		}
		if e := asyncTypes(t, ctx); !slices.Equal(e, events) {
			t.Errorf("events %v, want %v", e, events)
		}
	}
	state(ib.PortActive)
	down := eth
	down.Up = false
	*list = []netio.Interface{down}
	state(ib.PortDown, ib.EventPortErr, ib.EventGIDChange)
	if g := gidsOf(t, ctx); len(g) != 0 {
		t.Errorf("GIDs %v while the link is down", g)
	}
	*list = []netio.Interface{eth}
	state(ib.PortActive, ib.EventPortActive, ib.EventGIDChange)
	if err := p.SetLink(false); err != nil {
		t.Fatal(err)
	}
	state(ib.PortDown, ib.EventPortErr)
	p.SetLink(true)
	state(ib.PortActive, ib.EventPortActive)
}

func TestC011_ActiveMTU(t *testing.T) {
	t.Parallel()
	p := newProvider(t, nil)
	eth := netio.Interface{Name: "eth0", Index: 2, Up: true, Addrs: addrs("10.1.0.1")}
	list := hostOf(p, eth)
	ctx := open(t, p)
	for link, want := range map[int]ib.MTU{
		1500: ib.MTU1024, 4200: ib.MTU4096, 4191: ib.MTU2048, 4192: ib.MTU4096, 9000: ib.MTU4096, 65536: ib.MTU4096,
		1280: ib.MTU1024, 608: ib.MTU512, 607: ib.MTU256, 576: ib.MTU256, 352: ib.MTU256, 300: ib.MTU256,
	} {
		eth.MTU = link
		*list = []netio.Interface{eth}
		a, err := ctx.QueryPort(1)
		if err != nil || a.ActiveMTU != want || a.MaxMTU != ib.MTU4096 {
			t.Errorf("link of %d: active %v, max %v, %v; want %v", link, a.ActiveMTU, a.MaxMTU, err, want)
		}
	}
	if e := asyncTypes(t, ctx); len(e) != 0 {
		t.Errorf("events %v", e)
	}
}

func TestC014_QueriesUnderChurn(t *testing.T) {
	t.Parallel()
	n := newNetwork()
	p := n.provider(t, 1, addrA)
	ctx := open(t, p)
	all := make([]netip.Addr, 8)
	for i := range all {
		all[i] = netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 20 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				gs, err := ctx.GIDs()
				if err != nil {
					t.Error(err)
					return
				}
				for i, g := range gs {
					if i > 0 && gs[i-1].Index >= g.Index {
						t.Errorf("indexes out of order: %v", gs)
					}
				}
				if _, err := ctx.QueryPort(1); err != nil {
					t.Error(err)
				}
				if g, err := p.dev.port.entry(3); err == nil && !slices.Contains(all, g.addr) {
					t.Errorf("torn entry %v", g)
				} else if err != nil && !errors.Is(err, syscall.ENODATA) {
					t.Error(err)
				}
			}
		})
	}
	for i := range 300 {
		if err := p.SetAddrs(append([]netip.Addr{addrA}, all[:1+i%8]...)); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
}

func TestQueriesAreSane(t *testing.T) {
	t.Parallel()
	n := newNetwork()
	p := n.provider(t, 0, addrA)
	ctx := open(t, p)
	a, err := ctx.QueryDevice()
	if err != nil {
		t.Fatal(err)
	}
	// C-003
	for name, v := range map[string]int{
		"MaxQP": a.MaxQP, "MaxQPWR": a.MaxQPWR, "MaxSGE": a.MaxSGE, "MaxCQ": a.MaxCQ, "MaxCQE": a.MaxCQE, "MaxMR": a.MaxMR,
		"MaxPD": a.MaxPD, "MaxPKeys": a.MaxPKeys, "Ports": a.Ports, "CompVectors": a.CompVectors,
		"MaxQPRDAtomic": a.MaxQPRDAtomic, "MaxQPInitRDAtomic": a.MaxQPInitRDAtomic, "VendorID": int(a.VendorID),
	} {
		if v <= 0 {
			t.Errorf("%s is %d", name, v)
		}
	}
	if a.MaxMRSize <= 4096 || a.PageSizes < 4096 || a.NodeGUID == 0 {
		t.Errorf("attributes %+v", a)
	}
	// C-006
	for _, n := range []int{-1, 0, 2, 255} {
		if _, err := ctx.QueryPort(n); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("port %d: %v", n, err)
		}
		if _, err := ctx.PKey(n, 0); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("P_Key of port %d: %v", n, err)
		}
	}
	// C-010
	if k, err := ctx.PKey(1, 0); k != 0xFFFF || err != nil {
		t.Errorf("P_Key %#x, %v", uint16(k), err)
	}
	for _, i := range []int{-1, 1, 63} {
		if _, err := ctx.PKey(1, i); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("P_Key index %d: %v", i, err)
		}
	}
}

func TestC002_DeviceList(t *testing.T) {
	t.Parallel()
	n := newNetwork()
	p := n.provider(t, 0, addrA)
	one, err := p.Devices()
	if err != nil || len(one) != 1 || one[0].GUID == 0 || one[0].Name != "soft0" {
		t.Fatal(one, err)
	}
	ctx := open(t, p)
	two, _ := p.Devices()
	if !slices.Equal(one, two) || ctx.Device() != one[0] {
		t.Errorf("%v, %v, %v", one, two, ctx.Device())
	}
	if _, err := p.OpenDevice("mlx5_0"); !errors.Is(err, syscall.ENODEV) || !contains(err, "soft0") {
		t.Errorf("unknown name: %v", err)
	}
	if other := n.provider(t, 0, addrB); must(other.Devices())[0].GUID == one[0].GUID {
		t.Error("two devices with one GUID")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{Addrs: []netip.Addr{{}}},
		{Addrs: addrs("0.0.0.0")},
		{Addrs: addrs("224.0.0.1")},
		{Addrs: addrs("::")},
		{MTU: 100},
		{MTU: 1 << 20},
		{MTU: -1},
	} {
		if _, err := New(&cfg); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestC066_LimitsOfQueuePairs(t *testing.T) {
	t.Parallel()
	ctx := open(t, newProvider(t, nil))
	pd, _ := ctx.AllocPD()
	defer pd.Close()
	c, _ := ctx.CreateCQ(driver.CQConfig{Entries: 1})
	defer c.Close()
	for field, caps := range map[string]driver.Caps{
		"MaxSendWR":  {MaxSendWR: maxQPWR + 1},
		"MaxRecvWR":  {MaxRecvWR: maxQPWR + 1},
		"MaxSendSGE": {MaxSendSGE: maxSGE + 1},
		"MaxRecvSGE": {MaxRecvSGE: -1},
		"MaxInline":  {MaxInline: maxInline + 1},
	} {
		_, err := pd.CreateQP(driver.QPConfig{Type: ib.RC, SendCQ: c, RecvCQ: c, Cap: caps})
		if !errors.Is(err, syscall.EINVAL) || !contains(err, field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for typ, want := range map[ib.QPType]error{ib.UD: errors.ErrUnsupported, ib.RawPacket: errors.ErrUnsupported, 77: syscall.EINVAL} {
		if _, err := pd.CreateQP(driver.QPConfig{Type: typ, SendCQ: c, RecvCQ: c}); !errors.Is(err, want) {
			t.Errorf("type %d: %v", typ, err)
		}
	}
	if n := ctx.d.objects[kindQP].Load(); n != 0 {
		t.Errorf("%d queue pairs are counted", n)
	}
}

func contains(err error, text string) bool {
	return err != nil && strings.Contains(err.Error(), text)
}
