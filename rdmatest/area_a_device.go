package rdmatest

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Area A: device, port, GID and P_Key queries.
func areaDevice() []check {
	return []check{
		{"C-001_NoDevice", 0, noDevice},
		{"C-002_DeviceList", 0, deviceList},
		{"C-003_DeviceLimits", 0, deviceLimits},
		{"C-004_TwoContexts", 0, twoContexts},
		{"C-006_PortNumbers", 0, portNumbers},
		{"C-007_GIDIndexes", 0, gidIndexes},
		{"C-008_GIDTable", 0, gidTable},
		{"C-009_GIDsFollowAddresses", Changes, gidsFollow},
		{"C-010_PKeyTable", 0, pkeyTable},
		{"C-012_LinkDown", Changes, linkDown},
		{"C-014_QueriesUnderChurn", 0, queriesUnderChurn},
	}
}

// emptyProvider is a provider without a device.
type emptyProvider struct{ driver.Provider }

func (emptyProvider) Devices() ([]driver.DeviceInfo, error) { return nil, nil }

func (emptyProvider) OpenDevice(string) (driver.Context, error) {
	return nil, errors.New("opened a device that was not listed")
}

func noDevice(t *tb) {
	p := emptyProvider{t.Provider}
	list, err := verbs.Devices(p)
	t.ok(err, "list no devices")
	if len(list) != 0 {
		t.Errorf("listed %d devices, want none", len(list))
	}
	_, err = verbs.Open(p, "")
	t.isErr(err, nil, "open the default device of none")
	_, err = verbs.Open(p, "mlx5_0")
	t.isErr(err, nil, "open a device by name")
	if err != nil && !strings.Contains(err.Error(), "mlx5_0") {
		t.Errorf("the error %q does not say what was looked for", err)
	}
}

func deviceList(t *tb) {
	first, err := verbs.Devices(t.Provider)
	t.ok(err, "list devices")
	if len(first) == 0 {
		t.Fatal("no device")
	}
	for _, i := range first {
		if i.GUID == 0 {
			t.Errorf("%s: GUID 0", i.Name)
		}
		d, err := verbs.Open(t.Provider, i.Name)
		t.ok(err, "open %s by name", i.Name)
		if d.Info().Name != i.Name || d.Info().GUID != i.GUID {
			t.Errorf("opened %q %v, wanted %q %v", d.Info().Name, d.Info().GUID, i.Name, i.GUID)
		}
		again, err := i.Open()
		t.ok(err, "open %s from the list", i.Name)
		if again != d {
			t.Errorf("%s: two devices for one", i.Name)
		}
	}
	second, err := verbs.Devices(t.Provider)
	t.ok(err, "list devices again")
	if len(second) != len(first) {
		t.Fatalf("%d devices, then %d", len(first), len(second))
	}
	for i := range first {
		if first[i].DeviceInfo != second[i].DeviceInfo {
			t.Errorf("device %d was %+v, is %+v", i, first[i].DeviceInfo, second[i].DeviceInfo)
		}
	}
	_, err = verbs.Open(t.Provider, "no-such-device")
	t.isErr(err, nil, "open an unknown device")
	if err != nil && !strings.Contains(err.Error(), first[0].Name) {
		t.Errorf("the error %q does not name the devices that exist", err)
	}
}

func deviceLimits(t *tb) {
	a, err := t.a.Attr()
	t.ok(err, "query the device")
	positive := map[string]int{
		"MaxQP": a.MaxQP, "MaxQPWR": a.MaxQPWR, "MaxSGE": a.MaxSGE, "MaxCQ": a.MaxCQ, "MaxCQE": a.MaxCQE,
		"MaxMR": a.MaxMR, "MaxPD": a.MaxPD, "MaxPKeys": a.MaxPKeys, "Ports": a.Ports, "CompVectors": a.CompVectors,
		"MaxQPRDAtomic": a.MaxQPRDAtomic, "MaxQPInitRDAtomic": a.MaxQPInitRDAtomic,
	}
	for name, v := range positive {
		if v <= 0 {
			t.Errorf("%s is %d", name, v)
		}
	}
	page := uint64(os.Getpagesize())
	if a.MaxMRSize <= page || a.PageSizes&^(page-1) == 0 {
		t.Errorf("MaxMRSize %#x, PageSizes %#x, page %#x", a.MaxMRSize, a.PageSizes, page)
	}
	if a.NodeGUID == 0 || a.NodeGUID != t.a.Info().GUID {
		t.Errorf("node GUID %v, listed as %v", a.NodeGUID, t.a.Info().GUID)
	}
	if a.VendorID == 0 {
		t.Error("vendor id 0")
	}
	p, err := t.a.Port(1)
	t.ok(err, "query port 1")
	if p.State != ib.PortActive || p.ActiveMTU < ib.MTU256 || p.ActiveMTU > p.MaxMTU || p.MaxMessage == 0 || p.GIDs <= 0 || p.PKeys <= 0 {
		t.Errorf("port 1: %+v", p)
	}
}

func twoContexts(t *tb) {
	other, err := t.a.Info().Open()
	t.ok(err, "open the device again")
	private, err := t.a.Info().OpenPrivate()
	t.ok(err, "open the device privately")
	t.Cleanup(func() { t.closed(private, "private device") })
	if private == other {
		t.Fatal("the private device is the shared one")
	}
	pd1, pd2 := t.pd(t.a), t.pd(private)
	cq1, cq2 := t.cq(t.a, 64, nil), t.cq(private, 64, nil)
	small := verbs.QPConfig{MaxSendWR: 4, MaxRecvWR: 4}
	for _, c := range []struct {
		what       string
		pd         *verbs.PD
		send, recv *verbs.CQ
	}{
		{"send queue of the other", pd1, cq2, cq1},
		{"receive queue of the other", pd1, cq1, cq2},
		{"domain of the other", pd2, cq1, cq1},
	} {
		cfg := small
		cfg.SendCQ, cfg.RecvCQ = c.send, c.recv
		qp, err := c.pd.CreateQP(cfg)
		t.isErr(err, einval, "create a queue pair with a %s", c.what)
		if err == nil {
			qp.Close()
		}
	}
	ch, err := private.CreateCompChannel()
	t.ok(err, "create a channel")
	t.Cleanup(func() { t.closed(ch, "channel") })
	cq, err := t.a.CreateCQ(4, &verbs.CQConfig{Channel: ch})
	t.isErr(err, nil, "create a completion queue on a channel of the other")
	if err == nil {
		cq.Close()
	}
	// What was refused has hurt nothing.
	cfg := small
	cfg.SendCQ = cq1
	qp, err := pd1.CreateQP(cfg)
	t.ok(err, "create a queue pair within one device")
	t.closed(qp, "queue pair")
}

func portNumbers(t *tb) {
	a, err := t.a.Attr()
	t.ok(err, "query the device")
	for _, n := range []int{0, -1, a.Ports + 1, 255, 256} {
		_, err := t.a.Port(n)
		t.isErr(err, einval, "query port %d", n)
		_, err = t.a.GID(n, 0)
		t.isErr(err, einval, "query GID 0 of port %d", n)
		_, err = t.a.PKey(n, 0)
		t.isErr(err, einval, "query P_Key 0 of port %d", n)
		qp := t.looseQP(verbs.QPConfig{})
		err = qp.Modify(&verbs.QPAttr{State: ib.StateInit, Port: n}, maskInit)
		t.isErr(err, einval, "modify to INIT with port %d", n)
		if s := qp.State(); s != ib.StateReset {
			t.Errorf("port %d: state %v after a failed modify", n, s)
		}
	}
}

// looseQP makes a queue pair with queues of its own, for tests of a single one.
func (t *tb) looseQP(cfg verbs.QPConfig) *verbs.QP {
	t.Helper()
	if cfg.SendCQ == nil {
		cfg.SendCQ = t.cq(t.a, 256, nil)
	}
	qp, err := t.pd(t.a).CreateQP(cfg)
	t.ok(err, "create a queue pair")
	t.Cleanup(func() { t.closed(qp, "queue pair") })
	return qp
}

func gidIndexes(t *tb) {
	p, err := t.a.Port(1)
	t.ok(err, "query port 1")
	used := map[int]ib.GID{}
	gids, err := t.a.GIDs()
	t.ok(err, "read the table")
	for _, g := range gids {
		used[g.Index] = g.GID
	}
	for i := range p.GIDs {
		g, err := t.a.GID(1, i)
		if want, ok := used[i]; ok {
			t.ok(err, "GID %d", i)
			if g.GID != want || g.Index != i || g.Port != 1 {
				t.Errorf("GID %d: %+v, the table says %v", i, g, want)
			}
			continue
		}
		t.isErr(err, enodata, "empty GID %d", i)
	}
	for _, i := range []int{-1, p.GIDs, p.GIDs + 100} {
		_, err := t.a.GID(1, i)
		t.isErr(err, einval, "GID %d", i)
	}
}

func gidTable(t *tb) {
	gids, err := t.a.GIDs()
	t.ok(err, "read the table")
	seen := map[int]bool{}
	for _, g := range gids {
		if g.GID == (ib.GID{}) || g.Port != 1 || g.Type > ib.GIDTypeRoCEv2 || seen[g.Index] {
			t.Errorf("entry %+v", g)
		}
		seen[g.Index] = true
	}
	if len(gids) == 0 {
		t.Error("an active port without a GID")
	}
}

func gidsFollow(t *tb) {
	p := t.Provider.(changeable)
	v4, v6 := netip.MustParseAddr("10.0.0.77"), netip.MustParseAddr("fd00::77")
	has := func(a netip.Addr) bool {
		gids, err := t.a.GIDs()
		t.ok(err, "read the table")
		return slices.ContainsFunc(gids, func(g verbs.GIDEntry) bool { return g.GID == ib.GIDFromAddr(a) && g.Type == roceV2 })
	}
	if g := ib.GIDFromAddr(v4); g[10] != 0xFF || g[11] != 0xFF || g[12] != 10 || g[15] != 77 {
		t.Errorf("GID of %v is %v", v4, g)
	}
	t.drainAsync(t.a)
	steps := [][]netip.Addr{{t.Addr, v4}, {t.Addr, v4, v6}, {t.Addr, v6}, {t.Addr}}
	for _, addrs := range steps {
		t.ok(p.SetAddrs(addrs), "set the addresses")
		ev := t.asyncEvent(t.a)
		if ev.Type != ib.EventGIDChange || ev.Port != 1 || ev.Device != t.a {
			t.Errorf("event %v of port %d, want %v of port 1", ev.Type, ev.Port, ib.EventGIDChange)
		}
		for _, a := range []netip.Addr{t.Addr, v4, v6} {
			if want := slices.Contains(addrs, a); has(a) != want {
				t.Errorf("addresses %v: %v in the table: %v", addrs, a, !want)
			}
		}
		t.noAsync(t.a)
	}
}

// asyncEvent waits for the next event of a device.
func (t *tb) asyncEvent(d *verbs.Device) verbs.AsyncEvent {
	t.Helper()
	ev, err := d.Async().Event(t.limit)
	t.ok(err, "wait for an asynchronous event")
	return ev
}

// noAsync checks that no event is there.
func (t *tb) noAsync(d *verbs.Device) {
	t.Helper()
	ev, ok, err := d.Async().TryEvent()
	t.ok(err, "look for an asynchronous event")
	if ok {
		t.Errorf("asynchronous event that must not be: %v", ev.Type)
	}
}

// drainAsync throws old events away: a device that is shared may have some.
func (t *tb) drainAsync(d *verbs.Device) {
	t.Helper()
	for {
		_, ok, err := d.Async().TryEvent()
		t.ok(err, "look for an asynchronous event")
		if !ok {
			return
		}
	}
}

func pkeyTable(t *tb) {
	k, err := t.a.PKey(1, 0)
	t.ok(err, "P_Key 0")
	if k != 0xFFFF {
		t.Errorf("P_Key 0 is %#x", k)
	}
	p, err := t.a.Port(1)
	t.ok(err, "query port 1")
	for _, i := range []int{-1, p.PKeys, 63} {
		if i < p.PKeys && i >= 0 {
			continue
		}
		_, err := t.a.PKey(1, i)
		t.isErr(err, nil, "P_Key %d", i)
	}
	i, err := t.a.PKeyIndex(1, 0xFFFF)
	t.ok(err, "index of P_Key 0xFFFF")
	if i != 0 {
		t.Errorf("P_Key 0xFFFF has index %d", i)
	}
	for _, k := range []ib.PKey{0x7FFF, 0x1234} {
		_, err := t.a.PKeyIndex(1, k)
		t.isErr(err, nil, "index of P_Key %#x", k)
	}
}

func linkDown(t *tb) {
	p := t.Provider.(changeable)
	t.drainAsync(t.a)
	for _, up := range []bool{false, true} {
		t.ok(p.SetLink(up), "set the link to %v", up)
		a, err := t.a.Port(1)
		t.ok(err, "query port 1")
		if want := map[bool]ib.PortState{false: ib.PortDown, true: ib.PortActive}[up]; a.State != want {
			t.Errorf("link up %v: port %v, want %v", up, a.State, want)
		}
	}
	t.drainAsync(t.a)
}

func queriesUnderChurn(t *tb) {
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.limit)
	defer wg.Wait()
	defer stop()
	if p, ok := t.Provider.(changeable); ok && t.Fabric != nil {
		wg.Go(func() {
			extra := netip.MustParseAddr("10.0.0.78")
			for ctx.Err() == nil {
				for _, addrs := range [][]netip.Addr{{t.Addr, extra}, {t.Addr}} {
					if err := p.SetAddrs(addrs); err != nil {
						t.Errorf("set the addresses: %v", err)
						return
					}
				}
				yield()
			}
		})
	}
	var readers sync.WaitGroup
	for range 100 {
		readers.Go(func() {
			for range 20 {
				if _, err := t.a.Port(1); err != nil {
					t.Errorf("query the port: %v", err)
					return
				}
				gids, err := t.a.GIDs()
				if err != nil {
					t.Errorf("read the table: %v", err)
					return
				}
				for _, g := range gids {
					if g.GID == (ib.GID{}) {
						t.Errorf("torn entry %+v", g)
						return
					}
				}
				yield()
			}
		})
	}
	readers.Wait()
	stop()
	wg.Wait()
	t.drainAsync(t.a)
}
