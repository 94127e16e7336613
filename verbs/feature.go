package verbs

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Feature is something that not every device has.
type Feature uint8

const (
	FeatureAtomics Feature = iota
	FeatureWriteImm
	FeatureSRQ
	FeatureInvalidate
	FeatureMemoryWindows // of type 2, which requests bind
	FeatureOnDemand
	FeatureDMABuf
	FeatureModeration
	FeatureResizeCQ
	FeatureTimestamps
	FeatureXRC
	FeatureDeviceMemory
	FeatureFlush
)

var featureNames = [...]string{
	FeatureAtomics:       "atomics",
	FeatureWriteImm:      "write with immediate",
	FeatureSRQ:           "shared receive queues",
	FeatureInvalidate:    "send with invalidate",
	FeatureMemoryWindows: "memory windows",
	FeatureOnDemand:      "on-demand paging",
	FeatureDMABuf:        "dma-buf regions",
	FeatureModeration:    "completion moderation",
	FeatureResizeCQ:      "resizing completion queues",
	FeatureTimestamps:    "completion timestamps",
	FeatureXRC:           "XRC",
	FeatureDeviceMemory:  "device memory",
	FeatureFlush:         "FLUSH and ATOMIC WRITE",
}

// String gives "atomics".
func (f Feature) String() string {
	if int(f) < len(featureNames) {
		return featureNames[f]
	}
	return fmt.Sprintf("Feature(%d)", uint8(f))
}

// Supports gives nil, or an error that wraps errors.ErrUnsupported and says what
// would be needed. It may have to try: the first call for a feature can be slow.
func (d *Device) Supports(f Feature) error {
	const op = "probe"
	a, err := d.Attr()
	if err != nil {
		return err
	}
	no := func(why string) error {
		return opError(op, d, f.String(), fmt.Errorf("%s: %w", why, errors.ErrUnsupported))
	}
	unless := func(ok bool, why string) error {
		if ok {
			return nil
		}
		return no(why)
	}
	switch f {
	case FeatureAtomics:
		return unless(a.Atomic != ib.AtomicNone, "the device has no atomic operations")
	case FeatureWriteImm:
		return unless(d.info.Transport != ib.TransportIWARP, "iWARP has no immediate data")
	case FeatureSRQ:
		return unless(a.MaxSRQ > 0, "the device has none (MaxSRQ is 0)")
	case FeatureInvalidate:
		return unless(a.Caps&ib.CapMemMgtExtensions != 0, "the device lacks the memory management extensions")
	case FeatureMemoryWindows:
		// Windows of type 1 are bound by a call of their own, which is not there.
		return unless(a.Caps&(ib.CapMW2A|ib.CapMW2B) != 0, "the device has none of type 2")
	case FeatureOnDemand:
		return unless(a.ODP != 0, "the device cannot take page faults")
	case FeatureModeration:
		return unless(a.MaxModerationCount > 0, "the device has none (MaxModerationCount is 0)")
	case FeatureDMABuf:
		return d.probeDMABuf(op, f)
	case FeatureResizeCQ:
		return d.probeCQ(op, f)
	case FeatureTimestamps, FeatureXRC, FeatureDeviceMemory, FeatureFlush:
		return no("not yet in this version of the library")
	}
	return no("unknown feature")
}

// probeDMABuf and probeCQ make an object, as it is the object that knows.
func (d *Device) probeDMABuf(op string, f Feature) error {
	return d.ask(op, f.String(), func(c driver.Context) error {
		pd, err := c.AllocPD()
		if err != nil {
			return err
		}
		defer pd.Close()
		r, ok := pd.(driver.DMABufRegistrar)
		if !ok {
			return fmt.Errorf("the provider has no such call: %w", errors.ErrUnsupported)
		}
		// There is no such descriptor: who has the call says that, and who has not, that.
		mr, err := r.RegDMABuf(-1, 0, 4096, 0, ib.LocalWrite)
		switch {
		case err == nil:
			return mr.Close()
		case errors.Is(err, errors.ErrUnsupported), errors.Is(err, ErrDeviceGone):
			return err
		}
		return nil
	})
}

func (d *Device) probeCQ(op string, f Feature) error {
	return d.ask(op, f.String(), func(c driver.Context) error {
		cq, err := c.CreateCQ(driver.CQConfig{Entries: 1})
		if err != nil {
			return err
		}
		defer cq.Close()
		r, ok := cq.(driver.Resizer)
		if !ok {
			return fmt.Errorf("the provider has no such call: %w", errors.ErrUnsupported)
		}
		return r.Resize(2)
	})
}
