package verbs_test

import (
	"encoding/json"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestEndpoint(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cq, _ := r.cq(200, nil)
	a, sa := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	b, sb := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	ea, err := a.Endpoint(1, -1)
	r.ok(err)
	again, err := a.Endpoint(1, -1)
	r.ok(err)
	for _, o := range [][2]int{{2, -1}, {1, 3}, {0, 1}} {
		_, err := a.Endpoint(o[0], o[1])
		r.is(err, syscall.EINVAL, "another port or GID")
		if err != nil && !contains(err.Error(), "RESET") {
			t.Errorf("no advice: %v", err)
		}
	}
	same, err := a.Endpoint(1, 1)
	r.ok(err)
	if same != again {
		t.Errorf("for the index that it has %v, want %v", same, again)
	}
	eb, err := b.Endpoint(1, 1)
	r.ok(err)
	if ea != again || ea.QPN != a.Num() || ea.GID != r.gid(1) || ea.MTU != ib.MTU1024 || ea.PSN >= 1<<24 || a.State() != ib.StateInit || eb.GID != ea.GID {
		t.Errorf("%v, %v, %v", ea, again, eb)
	}
	r.is(a.Join(eb, nil), verbs.ErrNoReceives, "Join")
	r.is(verbs.ErrNoReceives, syscall.EINVAL, "as in C")
	r.recv(a, 1)
	eb.MTU = ib.MTU512
	r.ok(a.Join(eb, &verbs.PathOptions{Access: ib.RemoteWrite, TrafficClass: 8}))
	seven := 0
	r.ok(b.Join(ea, &verbs.PathOptions{NoReceives: true, RNRRetry: &seven, MaxRDAtomic: 3, Timeout: time.Second}))
	qa, qb := sa.Attr(), sb.Attr()
	if qa.State != ib.StateRTS || qa.DestQPN != b.Num() || qa.RQPSN != eb.PSN || qa.SQPSN != ea.PSN || qa.PathMTU != ib.MTU512 ||
		qa.AH.DGID != eb.GID || qa.AH.SGIDIndex != 1 || !qa.AH.Global || qa.AH.TrafficClass != 8 || qa.Access != ib.RemoteWrite ||
		qa.RetryCount != 7 || qa.RNRRetry != 7 || qa.MinRNRTimer != 640*time.Microsecond || qa.MaxRDAtomic != 1 || qa.Timeout < 60*time.Millisecond {
		t.Errorf("%+v", qa)
	}
	if qb.RNRRetry != 0 || qb.MaxRDAtomic != 3 || qb.Timeout != time.Second || qb.AH.HopLimit != 64 {
		t.Errorf("%+v", qb)
	}
	r.is(a.Join(eb, nil), syscall.EINVAL, "Join twice")
	c, _ := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	r.is(c.Join(ea, nil), syscall.EINVAL, "Join without Endpoint")
	_, err = c.Endpoint(2, -1)
	r.is(err, syscall.EINVAL, "port 2")
	_, err = c.Endpoint(1, 2)
	r.is(err, syscall.ENODATA, "empty index")
	uc, suc := r.qp(verbs.QPConfig{Type: ib.UC, SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	_, err = uc.Endpoint(1, 3)
	r.ok(err)
	r.ok(uc.Join(verbs.Endpoint{QPN: 1, GID: ib.GID{0: 0xFD, 15: 9}, MTU: ib.MTU1024}, &verbs.PathOptions{NoReceives: true}))
	if suc.Attr().State != ib.StateRTS {
		t.Error("UC")
	}
	r.ok(uc.Modify(&verbs.QPAttr{State: ib.StateReset}, ib.AttrState))
	ue, err := uc.Endpoint(1, 1)
	r.ok(err)
	if ue.GID != r.gid(1) {
		t.Errorf("after RESET: %v", ue)
	}
	ud, _ := r.qp(verbs.QPConfig{Type: ib.UD, SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	_, err = ud.Endpoint(1, -1)
	r.is(err, syscall.EINVAL, "UD")

	// Text and JSON.
	for _, e := range []verbs.Endpoint{ea, eb, {QPN: 1<<24 - 1, PSN: 1<<24 - 1, GID: ib.GID{0: 0xFE, 1: 0x80, 15: 1}, LID: 0xFFFF, MTU: ib.MTU256}} {
		j, err := json.Marshal(e)
		r.ok(err)
		var back verbs.Endpoint
		r.ok(json.Unmarshal(j, &back))
		if back != e {
			t.Errorf("%s became %v", j, back)
		}
	}
	good, _ := ea.MarshalText()
	for i := range good {
		var e verbs.Endpoint
		if err := e.UnmarshalText(good[:i]); err == nil && i < len(good)-3 {
			t.Errorf("%q was taken", good[:i])
		}
	}
	for _, s := range []string{
		"", "x", "qpn=1000000 psn=0 gid=:: lid=0 mtu=1024", "qpn=0 psn=1000000 gid=:: lid=0 mtu=1024",
		"qpn=0 psn=0 gid=1.2.3 lid=0 mtu=1024", "qpn=0 psn=0 gid=:: lid=10000 mtu=1024", "qpn=0 psn=0 gid=:: lid=0 mtu=1000",
		"qpn=0 psn=0 gid=:: lid=0 mtu=1024 more", "qpn=-1 psn=0 gid=:: lid=0 mtu=1024", "qpn=0x psn=0 gid=:: lid=0 mtu=1024",
	} {
		var e verbs.Endpoint
		r.is(e.UnmarshalText([]byte(s)), syscall.EINVAL, s)
	}
}

func (r *rig) gid(index int) ib.GID {
	r.Helper()
	g, err := r.dev.GID(1, index)
	r.ok(err)
	return g.GID
}

func FuzzEndpoint(f *testing.F) {
	f.Add("qpn=000011 psn=3a5f01 gid=::ffff:10.0.0.1 lid=0000 mtu=1024")
	f.Add("qpn=0 psn=0 gid=:: lid=0 mtu=256")
	f.Fuzz(func(t *testing.T, s string) {
		var e, again verbs.Endpoint
		if e.UnmarshalText([]byte(s)) != nil {
			return
		}
		b, err := e.MarshalText()
		if err != nil || again.UnmarshalText(b) != nil || again != e {
			t.Errorf("%q gave %v, then %v", s, e, again)
		}
	})
}
