//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Modify changes attributes (ibv_modify_qp).
func (q *qp) Modify(a *driver.QPAttr, m ib.QPAttrMask) error {
	if err := q.d.err(); err != nil {
		return err
	}
	v := attrIn(a)
	return q.d.fail(C.vb_modify_qp(q.c, &v, C.uint32_t(m)))
}

// queryable are the attributes that the library takes in a query; it refuses a mask with
// others. A rate limit cannot be asked for.
const queryable = ib.AttrDestQPN<<1 - 1

// Query gives the attributes of the mask (ibv_query_qp).
func (q *qp) Query(m ib.QPAttrMask) (driver.QPAttr, error) {
	if err := q.d.err(); err != nil {
		return driver.QPAttr{}, err
	}
	var v C.struct_vb_qp_attr
	if err := q.d.fail(C.vb_query_qp(q.c, &v, C.uint32_t(m&queryable))); err != nil {
		return driver.QPAttr{}, err
	}
	return attrOut(&v), nil
}

func attrIn(a *driver.QPAttr) C.struct_vb_qp_attr {
	return C.struct_vb_qp_attr{
		state:              C.int32_t(a.State),
		cur_state:          C.int32_t(a.CurState),
		path_mtu:           C.int32_t(a.PathMTU),
		mig_state:          C.int32_t(a.PathMigState),
		qkey:               C.uint32_t(a.QKey),
		rq_psn:             C.uint32_t(a.RQPSN),
		sq_psn:             C.uint32_t(a.SQPSN),
		dest_qpn:           C.uint32_t(a.DestQPN),
		access:             C.uint32_t(a.Access),
		rate_limit:         C.uint32_t(a.RateLimitKbps),
		caps:               capsIn(&a.Cap),
		ah:                 ahIn(&a.AH),
		alt_ah:             ahIn(&a.AltAH),
		pkey_index:         C.uint16_t(a.PKeyIndex),
		alt_pkey_index:     C.uint16_t(a.AltPKeyIndex),
		sqd_notify:         flag(a.SQDNotify),
		sq_draining:        flag(a.SQDraining),
		max_rd_atomic:      C.uint8_t(a.MaxRDAtomic),
		max_dest_rd_atomic: C.uint8_t(a.MaxDestRDAtomic),
		min_rnr_timer:      C.uint8_t(ib.RNRTimer(a.MinRNRTimer)),
		port:               C.uint8_t(a.Port),
		timeout:            C.uint8_t(ib.AckTimeout(a.Timeout)),
		retry_cnt:          C.uint8_t(a.RetryCount),
		rnr_retry:          C.uint8_t(a.RNRRetry),
		alt_port:           C.uint8_t(a.AltPort),
		alt_timeout:        C.uint8_t(ib.AckTimeout(a.AltTimeout)),
	}
}

func flag(on bool) C.uint8_t {
	if on {
		return 1
	}
	return 0
}

func attrOut(v *C.struct_vb_qp_attr) driver.QPAttr {
	return driver.QPAttr{
		State:           ib.QPState(v.state),
		CurState:        ib.QPState(v.cur_state),
		PathMTU:         ib.MTU(v.path_mtu),
		PathMigState:    ib.MigState(v.mig_state),
		QKey:            ib.QKey(v.qkey),
		RQPSN:           ib.PSN(v.rq_psn),
		SQPSN:           ib.PSN(v.sq_psn),
		DestQPN:         ib.QPN(v.dest_qpn),
		Access:          ib.Access(v.access),
		Cap:             capsOut(&v.caps),
		AH:              ahOut(&v.ah),
		AltAH:           ahOut(&v.alt_ah),
		PKeyIndex:       int(v.pkey_index),
		AltPKeyIndex:    int(v.alt_pkey_index),
		SQDNotify:       v.sqd_notify != 0,
		SQDraining:      v.sq_draining != 0,
		MaxRDAtomic:     int(v.max_rd_atomic),
		MaxDestRDAtomic: int(v.max_dest_rd_atomic),
		MinRNRTimer:     ib.RNRTimerDuration(uint8(v.min_rnr_timer)),
		Timeout:         ib.AckTimeoutDuration(uint8(v.timeout)),
		AltTimeout:      ib.AckTimeoutDuration(uint8(v.alt_timeout)),
		Port:            int(v.port),
		AltPort:         int(v.alt_port),
		RetryCount:      int(v.retry_cnt),
		RNRRetry:        int(v.rnr_retry),
		RateLimitKbps:   int(v.rate_limit),
	}
}
