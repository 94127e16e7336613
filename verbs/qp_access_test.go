package verbs_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestFlushAccess: the rights to FLUSH are for queue pairs of devices that have it. Linux'
// connection manager gives them whenever the device does.
func TestFlushAccess(t *testing.T) {
	t.Parallel()
	for _, has := range []ib.DeviceCaps{0, ib.CapFlushGlobal | ib.CapFlushPersistent} {
		cfg := &scripted.Config{Attr: scripted.DefaultAttr()}
		cfg.Attr.Caps |= has
		r := newRig(t, cfg)
		pd, err := r.dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		defer pd.Close()
		cq, err := r.dev.CreateCQ(256, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer cq.Close()
		qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq})
		if err != nil {
			t.Fatal(err)
		}
		defer qp.Close()
		err = qp.Modify(&verbs.QPAttr{State: ib.StateInit, Port: 1, Access: ib.RemoteWrite | ib.FlushGlobal | ib.FlushPersistent},
			ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrAccess)
		if has == 0 && !errors.Is(err, syscall.EINVAL) || has != 0 && err != nil {
			t.Errorf("device with %v: %v", has, err)
		}
	}
}
