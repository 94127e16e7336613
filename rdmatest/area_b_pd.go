package rdmatest

import (
	"errors"
	"net"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area B: protection domains.
func areaPD() []check {
	return []check{
		{"C-017_AllocateAndFree", 0, allocateAndFree},
		{"C-018_DomainInUse", 0, domainInUse},
		{"C-018_AddressHandle", 0, domainOfAddressHandle},
		{"C-018_Window", 0, domainOfWindow},
		{"C-018_SharedQueue", 0, domainOfSharedQueue},
	}
}

func allocateAndFree(t *tb) {
	n := len(t.a.Objects())
	for range 200 {
		pd, err := t.a.AllocPD()
		t.ok(err, "allocate a protection domain")
		if pd.Device() != t.a {
			t.Fatal("protection domain of another device")
		}
		t.closed(pd, "protection domain")
		t.closed(pd, "protection domain, again")
		_, err = pd.Alloc(4096, ib.LocalWrite)
		t.isErr(err, net.ErrClosed, "register in a closed domain")
	}
	if m := len(t.a.Objects()); m != n {
		t.Errorf("%d objects before, %d after", n, m)
	}
}

// A domain that is closed while it has children goes with the last of them; until
// then they work.
func domainInUse(t *tb) {
	n := len(t.a.Objects())
	pd, err := t.a.AllocPD()
	t.ok(err, "allocate a protection domain")
	mr, err := pd.Alloc(4096, allRights)
	t.ok(err, "register")
	cq, err := t.a.CreateCQ(16, nil)
	t.ok(err, "create a completion queue")
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 4})
	t.ok(err, "create a queue pair")

	t.closed(pd, "domain with children")
	t.closed(cq, "completion queue with a queue pair")
	_, err = pd.Alloc(4096, ib.LocalWrite)
	t.isErr(err, net.ErrClosed, "register in a closed domain")
	_, err = pd.CreateQP(verbs.QPConfig{SendCQ: cq})
	t.isErr(err, net.ErrClosed, "create a queue pair in a closed domain")

	// The children go on.
	mr.Bytes()[0] = 1
	err = qp.Modify(&verbs.QPAttr{State: ib.StateInit, Port: 1}, maskInit)
	t.ok(err, "modify a queue pair whose domain is closed")
	if len(t.a.Objects()) <= n {
		t.Error("no objects are listed while children are open")
	}
	t.closed(qp, "queue pair")
	t.closed(mr, "memory region")
	if left := t.a.Objects(); len(left) != n {
		t.Errorf("objects left: %v", left)
	}
}

// domainOf closes a domain that has one child of a kind, and the child behind it.
func (t *tb) domainOf(what string, child func(pd *verbs.PD) (interface{ Close() error }, error), works func()) {
	t.Helper()
	n := len(t.a.Objects())
	pd, err := t.a.AllocPD()
	t.ok(err, "allocate a protection domain")
	t.Cleanup(func() { t.closed(pd, "domain") })
	c, err := child(pd)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("%s: %v", t.a.Info().Name, err)
	}
	t.ok(err, "create %s", what)
	t.closed(pd, "domain with "+what)
	_, err = pd.Alloc(4096, ib.LocalWrite)
	t.isErr(err, net.ErrClosed, "register in a closed domain")
	works()
	if len(t.a.Objects()) <= n {
		t.Errorf("no objects are listed while %s is open", what)
	}
	t.closed(c, what)
	if left := t.a.Objects(); len(left) != n {
		t.Errorf("objects left: %v", left)
	}
}

func domainOfAddressHandle(t *tb) {
	from, to := t.gid(t.a, 0), t.gid(t.b, 1)
	at := verbs.AHAttr{DGID: to.GID, SGIDIndex: from.Index, HopLimit: 64, Global: true, Port: from.Port}
	t.domainOf("an address handle", func(pd *verbs.PD) (interface{ Close() error }, error) { return pd.CreateAH(at) }, func() {})
}

func domainOfWindow(t *tb) {
	t.supports(verbs.FeatureMemoryWindows)
	var w *verbs.MW
	t.domainOf("a memory window", func(pd *verbs.PD) (_ interface{ Close() error }, err error) {
		w, err = pd.AllocMW(ib.MWType2)
		return w, err
	}, func() {
		if w.RKey() == 0 {
			t.Error("a window without a key")
		}
	})
}

func domainOfSharedQueue(t *tb) {
	t.supports(verbs.FeatureSRQ)
	var q *verbs.SRQ
	t.domainOf("a shared receive queue", func(pd *verbs.PD) (_ interface{ Close() error }, err error) {
		q, err = pd.CreateSRQ(verbs.SRQConfig{MaxWR: 4})
		return q, err
	}, func() {
		_, _, err := q.Query()
		t.ok(err, "query a shared queue whose domain is closed")
	})
}
