package scripted

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// merge sets the attributes of a mask, the state apart, and leaves the others: a queue
// pair is given them in several steps.
func merge(to, from *driver.QPAttr, m ib.QPAttrMask) {
	for _, f := range []struct {
		bit ib.QPAttrMask
		set func()
	}{
		{ib.AttrSQDNotify, func() { to.SQDNotify = from.SQDNotify }},
		{ib.AttrAccess, func() { to.Access = from.Access }},
		{ib.AttrPKeyIndex, func() { to.PKeyIndex = from.PKeyIndex }},
		{ib.AttrPort, func() { to.Port = from.Port }},
		{ib.AttrQKey, func() { to.QKey = from.QKey }},
		{ib.AttrAV, func() { to.AH = from.AH }},
		{ib.AttrPathMTU, func() { to.PathMTU = from.PathMTU }},
		{ib.AttrTimeout, func() { to.Timeout = from.Timeout }},
		{ib.AttrRetryCount, func() { to.RetryCount = from.RetryCount }},
		{ib.AttrRNRRetry, func() { to.RNRRetry = from.RNRRetry }},
		{ib.AttrRQPSN, func() { to.RQPSN = from.RQPSN }},
		{ib.AttrMaxRDAtomic, func() { to.MaxRDAtomic = from.MaxRDAtomic }},
		{ib.AttrAltPath, func() {
			to.AltAH, to.AltPort, to.AltPKeyIndex, to.AltTimeout = from.AltAH, from.AltPort, from.AltPKeyIndex, from.AltTimeout
		}},
		{ib.AttrMinRNRTimer, func() { to.MinRNRTimer = from.MinRNRTimer }},
		{ib.AttrSQPSN, func() { to.SQPSN = from.SQPSN }},
		{ib.AttrMaxDestRDAtomic, func() { to.MaxDestRDAtomic = from.MaxDestRDAtomic }},
		{ib.AttrPathMigState, func() { to.PathMigState = from.PathMigState }},
		{ib.AttrCap, func() { to.Cap = from.Cap }},
		{ib.AttrDestQPN, func() { to.DestQPN = from.DestQPN }},
		{ib.AttrRateLimit, func() { to.RateLimitKbps = from.RateLimitKbps }},
	} {
		if m&f.bit != 0 {
			f.set()
		}
	}
}
