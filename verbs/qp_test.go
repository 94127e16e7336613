package verbs_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestC065_Caps(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cq, _ := r.cq(1000, nil)
	qp, _ := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 100, MaxRecvWR: 90, MaxSendSGE: 3, MaxRecvSGE: 2, MaxInline: 10, UserData: "mine"})
	c := qp.Config()
	if c.MaxSendWR != 100 || c.MaxRecvWR != 90 || c.MaxSendSGE != 4 || c.MaxRecvSGE != 2 || c.MaxInline != 16 || c.Type != ib.RC || c.RecvCQ != cq {
		t.Errorf("%+v", c)
	}
	a, err := qp.Query(ib.AttrCap | ib.AttrState)
	r.ok(err)
	if a.Cap.MaxSendWR != c.MaxSendWR || a.Cap.MaxSendSGE != c.MaxSendSGE || a.Cap.MaxInline != c.MaxInline || a.State != ib.StateReset {
		t.Errorf("query: %+v", a.Cap)
	}
	if qp.State() != ib.StateReset || qp.Err() != nil || qp.UserData() != "mine" || qp.Type() != ib.RC || qp.PD() != r.pd || qp.SendCQ() != cq || qp.RecvCQ() != cq {
		t.Error("C-068, or a getter")
	}
	qp.SetUserData(5)
	if qp.UserData() != 5 {
		t.Error("user data")
	}
}

func TestC066_BeyondTheLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cq, _ := r.cq(100, nil)
	private, err := r.dev.Info().OpenPrivate()
	r.ok(err)
	defer private.Close()
	foreign, err := private.CreateCQ(10, nil)
	r.ok(err)
	defer foreign.Close()
	fpd := must(t)(private.AllocPD())
	defer fpd.Close()
	made := r.p.Count("create qp")
	for _, c := range []struct {
		cfg  verbs.QPConfig
		want error
		text string
	}{
		{verbs.QPConfig{SendCQ: cq, MaxSendSGE: 17}, syscall.EINVAL, "MaxSendSGE 17 is not in 0..16"},
		{verbs.QPConfig{SendCQ: cq, MaxRecvSGE: 17}, syscall.EINVAL, "MaxRecvSGE"},
		{verbs.QPConfig{SendCQ: cq, MaxSendWR: 1<<14 + 1}, syscall.EINVAL, "MaxSendWR"},
		{verbs.QPConfig{SendCQ: cq, MaxRecvWR: 1<<14 + 1}, syscall.EINVAL, "MaxRecvWR"},
		{verbs.QPConfig{SendCQ: cq, MaxSendWR: -1}, syscall.EINVAL, "MaxSendWR -1"},
		{verbs.QPConfig{SendCQ: cq, MaxInline: -1}, syscall.EINVAL, "MaxInline"},
		{verbs.QPConfig{SendCQ: cq, Type: 77}, syscall.EINVAL, "type"},
		{verbs.QPConfig{SendCQ: cq, Type: ib.RawPacket}, errors.ErrUnsupported, "RAW_PACKET"},
		{verbs.QPConfig{SendCQ: cq, Type: ib.XRCSend}, errors.ErrUnsupported, "XRC"},
		{verbs.QPConfig{}, syscall.EINVAL, "SendCQ"},
		{verbs.QPConfig{SendCQ: &verbs.CQ{}}, syscall.EINVAL, "SendCQ"},
		{verbs.QPConfig{SendCQ: foreign}, syscall.EINVAL, "SendCQ belongs to another device"},
		{verbs.QPConfig{SendCQ: cq, RecvCQ: foreign}, syscall.EINVAL, "RecvCQ belongs to another device"},
	} {
		_, err := r.pd.CreateQP(c.cfg)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v, want %v and %q", c.cfg, err, c.want, c.text)
		}
	}
	_, err = fpd.CreateQP(verbs.QPConfig{SendCQ: cq})
	r.is(err, syscall.EINVAL, "C-004 PD of another device")
	ch, _ := r.channel()
	_, err = private.CreateCQ(4, &verbs.CQConfig{Channel: ch})
	r.is(err, syscall.EINVAL, "C-004 channel of another device")
	var none *verbs.PD
	_, err = none.CreateQP(verbs.QPConfig{SendCQ: cq})
	r.is(err, syscall.EINVAL, "nil")
	if r.p.Count("create qp") != made {
		t.Error("the device was asked")
	}
	// The room of a refused one is free again.
	r.p.FailOp("create qp", 1, syscall.ENOMEM)
	_, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 50, MaxRecvWR: 50})
	r.is(err, syscall.ENOMEM, "the device's error")
	r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 50, MaxRecvWR: 50})
}
