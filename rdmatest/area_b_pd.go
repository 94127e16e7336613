package rdmatest

import (
	"net"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area B: protection domains.
func areaPD() []check {
	return []check{
		{"C-017_AllocateAndFree", 0, allocateAndFree},
		{"C-018_DomainInUse", 0, domainInUse},
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
