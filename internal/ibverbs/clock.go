//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"math"
	"math/bits"
	"time"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

var _ driver.Clock = (*deviceContext)(nil)

// Clock gives the device's time (ibv_query_rt_values_ex). Devices count ticks, of a
// frequency that they tell; what has no clock, or does not tell, gives
// errors.ErrUnsupported.
func (d *deviceContext) Clock() (time.Duration, error) {
	if err := d.err(); err != nil {
		return 0, err
	}
	var seconds, ticks C.uint64_t
	khz := C.uint64_t(d.khz.Load())
	if err := d.fail(C.vb_clock(d.c, &seconds, &ticks, &khz)); err != nil {
		return 0, err
	}
	d.khz.Store(uint64(khz))
	return clockTime(uint64(seconds), uint64(ticks), uint64(khz)), nil
}

// clockTime makes a time of ticks, at khz in a millisecond, without loss. It goes round, as
// the device's counter does; a Duration lasts for 292 years.
func clockTime(seconds, ticks, khz uint64) time.Duration {
	if khz == 0 {
		return 0
	}
	hi, lo := bits.Mul64(ticks, uint64(time.Millisecond))
	ns, _ := bits.Div64(hi%khz, lo, khz)
	return time.Duration((seconds*uint64(time.Second) + ns) & math.MaxInt64)
}
