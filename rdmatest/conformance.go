package rdmatest

import (
	"hash/fnv"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// ConformanceOptions says on what the suite runs, and what is known to differ. A nil
// *ConformanceOptions is the zero value.
type ConformanceOptions struct {
	// Addr is where the provider can be reached; not valid: the first RoCE v2 GID of
	// an active port.
	Addr netip.Addr

	// Peer is the other side of every connection, reached at PeerAddr. Nil: both
	// sides are on the same device.
	Peer     verbs.Provider
	PeerAddr netip.Addr

	// Fabric, if both providers are hosts of it, makes the tests run that lose,
	// change and forge packets.
	Fabric *Fabric

	// Each, if not nil, is called for every test, with the test to run: it can make
	// a Bed of its own, perhaps in a testing/synctest bubble (see OnFabric). The
	// fields above, and the provider given to Conformance, are then not used. Has
	// says what its beds have.
	Each func(t *testing.T, run func(t *testing.T, b Bed))
	Has  Ability

	// Needs leaves out the tests that do without one of these: Faults makes only those
	// run that need a network with faults.
	Needs Ability

	// Limit is how long a test may take where time is real; zero: 10 s. An emulated
	// machine needs more, and from 30 s on those run that have the need Patience.
	Limit time.Duration

	// Accept names points of tests where this provider gives another status than the
	// standard, and says which: "C-119/receiver". Nothing else will do there, the
	// standard's own status neither, unless it is in the list: then it depends on timing
	// inside the provider. No status at all says that nothing completes. A point that no
	// test asks for fails the run: so a profile never outlives its reasons.
	Accept map[string][]ib.Status

	// Known names tests of something that this provider lacks and no status tells, with
	// the reason. Such a test marks what that is: this part must fail, and is given 3 s, as
	// it may wait in vain; all else must pass. If nothing fails, it is "no longer needed".
	Known map[string]string

	// Unsteady is Known for what is missing on some runs and there on others, by timing
	// inside the provider. The part has 10 s, and may pass.
	Unsteady map[string]string
}

// Bed is what one test of the suite runs on.
type Bed struct {
	Provider, Peer verbs.Provider // may be the same
	Addr, PeerAddr netip.Addr
	Fabric         *Fabric       // nil: no faults
	Virtual        bool          // time costs nothing
	Limit          time.Duration // of a test in real time; zero: 10 s

	// OtherAddr is a second address of Peer's device; not valid: Peer can be given one
	// (see Changes), or has none.
	OtherAddr netip.Addr
}

// Ability is a set of what a Bed can have beyond two providers.
type Ability uint8

const (
	Faults       Ability = 1 << iota // a Fabric
	VirtualTime                      // tests that wait for minutes can run
	TwoHosts                         // Peer is another device
	Changes                          // the provider can lose its device, addresses and link; see softroce
	Patience                         // tests that wait for seconds can run; VirtualTime has it
	OtherAddress                     // Peer has a Bed.OtherAddr; a provider with Changes is given one
	IPv4                             // both sides have addresses of IPv4
)

// anyWire is the need of tests of faults that also work in real time, with any device at
// the other end of a Fabric's Uplink.
const anyWire = Faults | Patience

// OnFabric is an Each: it makes a fabric with two hosts for every test, in a
// testing/synctest bubble, and runs tests in parallel. Its beds have every Ability.
func OnFabric(t *testing.T, run func(t *testing.T, b Bed)) {
	onFabric(t, run, fabricBed)
}

// OnFabricOneHost is an Each as OnFabric; both sides of each test are on one device.
// Its beds have all but TwoHosts.
func OnFabricOneHost(t *testing.T, run func(t *testing.T, b Bed)) {
	onFabric(t, run, func(f *Fabric) Bed {
		b := fabricBed(f)
		b.Peer, b.PeerAddr = b.Provider, b.Addr
		return b
	})
}

// OnFabricIPv6 is an Each as OnFabric, over IPv6. Its beds have all but IPv4.
func OnFabricIPv6(t *testing.T, run func(t *testing.T, b Bed)) {
	onFabric(t, run, func(f *Fabric) Bed {
		return f.bed(netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"))
	})
}

func onFabric(t *testing.T, run func(t *testing.T, b Bed), bed func(*Fabric) Bed) {
	t.Helper()
	h := fnv.New64a()
	h.Write([]byte(t.Name()))
	seed := seedOr(t, h.Sum64())
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		run(t, bed(NewFabric(t, seed)))
	})
}

func fabricBed(f *Fabric) Bed {
	return f.bed(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"))
}

func (f *Fabric) bed(a, b netip.Addr) Bed {
	return Bed{Provider: f.Host(a), Peer: f.Host(b), Addr: a, PeerAddr: b, Fabric: f, Virtual: true}
}

// check is a test of the suite.
type check struct {
	name  string
	needs Ability
	f     func(t *tb)
}

// Conformance runs the tests that every provider must pass, as subtests. Differences
// in ability are decided by Device.Supports; a test of something that the device does
// not have is skipped with the device's reason. Tests whose needs the options do not
// meet are left out.
func Conformance(t *testing.T, p verbs.Provider, o *ConformanceOptions) {
	if o == nil {
		o = &ConformanceOptions{}
	}
	each, has := o.Each, o.Has
	if each == nil {
		b, h := o.bed(t, p)
		has = h
		each = func(t *testing.T, run func(*testing.T, Bed)) { run(t, b) }
	}
	if has&VirtualTime != 0 {
		has |= Patience
	}
	if has&Changes != 0 {
		has |= OtherAddress
	}
	entries := newProfile(o)
	for _, c := range allChecks() {
		if c.needs&^has != 0 || o.Needs&^c.needs != 0 {
			continue
		}
		entries.note(c.name, false)
		t.Run(c.name, func(t *testing.T) {
			entries.note(c.name, true)
			each(t, func(t *testing.T, b Bed) { runCheck(t, c, b, entries, entries.excuse(c.name)) })
		})
	}
	t.Cleanup(func() { // when those that run in parallel have ended
		if t.Failed() {
			return
		}
		for _, complaint := range entries.idle() {
			t.Error(complaint)
		}
	})
}

// bed is the one that all tests share.
func (o *ConformanceOptions) bed(t *testing.T, p verbs.Provider) (Bed, Ability) {
	t.Helper()
	b := Bed{Provider: p, Peer: o.Peer, Addr: o.Addr, PeerAddr: o.PeerAddr, Fabric: o.Fabric, Limit: o.Limit}
	var has Ability
	if b.Fabric != nil {
		has |= Faults
	}
	if b.Limit >= 30*time.Second {
		has |= Patience
	}
	if b.Peer != nil {
		has |= TwoHosts
	} else {
		b.Peer, b.PeerAddr = b.Provider, b.Addr
	}
	if _, ok := p.(changeable); ok && b.Fabric != nil {
		has |= Changes
	}
	b.Addr = addrOf(t, b.Provider, b.Addr)
	b.PeerAddr = addrOf(t, b.Peer, b.PeerAddr)
	if b.Addr.Is4() && b.PeerAddr.Is4() {
		has |= IPv4
	}
	return b, has
}

// addrOf gives a, or the first address of an active port.
func addrOf(t *testing.T, p verbs.Provider, a netip.Addr) netip.Addr {
	t.Helper()
	if a.IsValid() {
		return a
	}
	d, err := verbs.Open(p, "")
	if err != nil {
		t.Fatalf("no device to test: %v", err)
	}
	gids, err := d.GIDs()
	if err != nil {
		t.Fatalf("GIDs of %s: %v", d.Info().Name, err)
	}
	for _, g := range gids {
		if g.Type == roceV2 && !g.GID.Addr().IsLinkLocalUnicast() {
			return g.GID.Addr()
		}
	}
	t.Fatalf("%s has no RoCE v2 GID", d.Info().Name)
	return a
}

// changeable is what a provider offers to tests with the ability Changes.
type changeable interface {
	RemoveDevice()
	SetAddrs([]netip.Addr) error
	SetLink(up bool) error
}

// allChecks gives the suite, in the order of the areas.
func allChecks() []check {
	return slices.Concat(
		areaDevice(), areaPD(), areaMR(), areaCQ(), areaQP(), areaQPStates(),
		areaRC(), areaRCData(), areaRCLoss(), areaRCErrors(), areaRCRetry(), areaRCWire(), areaUD(), areaSRQ(), areaWindows(),
		areaAsync(), areaCM(), areaCMEvents(), areaCMWire(), areaNotify(), areaScale(), areaSoak(), areaHostile(), areaHostileCM(),
		areaKinds())
}

// Bounds of waits: on a virtual clock they cost nothing, on a real one they are only
// reached by a failure.
const (
	virtualLimit = 24 * time.Hour
	realLimit    = 10 * time.Second
	knownLimit   = 3 * time.Second // of what is missing, as far as is known
	virtualGrace = time.Second
	realGrace    = 15 * time.Millisecond
)
