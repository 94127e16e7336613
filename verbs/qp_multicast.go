package verbs

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// group is a multicast group that a queue pair is attached to.
type group struct {
	gid ib.GID
	lid ib.LID
}

// AttachMulticast lets a queue pair of type UD receive what is sent to a group (ibv_attach_mcast);
// doing it again changes nothing. Close detaches. EINVAL: the queue pair has another type, or g is no
// group.
func (qp *QP) AttachMulticast(g ib.GID, l ib.LID) error {
	return qp.ofGroup("attach multicast", g, func() error {
		if err := qp.d.Attach(g, l); err != nil {
			return err
		}
		if !slices.Contains(qp.groups, group{g, l}) {
			qp.groups = append(qp.groups, group{g, l})
		}
		return nil
	})
}

// DetachMulticast ends that (ibv_detach_mcast). EINVAL: the queue pair is not attached.
func (qp *QP) DetachMulticast(g ib.GID, l ib.LID) error {
	return qp.ofGroup("detach multicast", g, func() error {
		if err := qp.d.Detach(g, l); err != nil {
			return err
		}
		qp.groups = slices.DeleteFunc(qp.groups, func(have group) bool { return have == group{g, l} })
		return nil
	})
}

func (qp *QP) ofGroup(op string, g ib.GID, f func() error) error {
	return qp.control(op, func() error {
		if qp.typ != ib.UD {
			return fmt.Errorf("multicast is for datagrams: %w", syscall.EINVAL)
		}
		if g[0] != 0xFF && !g.IsMulticast() {
			return fmt.Errorf("%v is no multicast GID: %w", g, syscall.EINVAL)
		}
		return f()
	})
}

// leaveGroups detaches the queue pair before it is destroyed: the kernel keeps one that is attached
// (EBUSY). qp.mu is held. An error is that of the device's end, which Close meets as well.
func (qp *QP) leaveGroups() {
	for _, g := range qp.groups {
		qp.d.Detach(g.gid, g.lid)
	}
	qp.groups = nil
}
