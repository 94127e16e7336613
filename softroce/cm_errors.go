package softroce

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// cmError is a call of the connection manager that failed at once. errors.Is finds the
// errno, and driver.ErrDeviceGone and errors.ErrUnsupported where they fit.
type cmError struct {
	op   string
	why  string
	errs []error
}

func (e *cmError) Error() string {
	if e.why == "" {
		return "softroce: " + e.op + ": " + e.errs[0].Error()
	}
	return "softroce: " + e.op + ": " + e.why + ": " + e.errs[0].Error()
}

func (e *cmError) Unwrap() []error { return e.errs }

func cmFail(op, why string, errs ...error) error {
	return &cmError{op: op, why: why, errs: errs}
}

// cmWrap adds the call to an error of the device, which says the rest itself.
func cmWrap(op string, err error) error {
	return fmt.Errorf("softroce: %s: %w", op, err)
}

// errIDClosed and its kin are what calls on something that is over give.
func cmGone(op string) error {
	return cmFail(op, "device was removed", syscall.ENODEV, driver.ErrDeviceGone)
}

// portSpaceName names a port space, so that nobody looks for the port in netstat.
func portSpaceName(ps ib.PortSpace) string {
	switch ps {
	case ib.PortSpaceTCP:
		return "RDMA port space TCP"
	case ib.PortSpaceUDP:
		return "RDMA port space UDP"
	}
	return fmt.Sprintf("RDMA port space %#x", uint16(ps))
}

func portFail(op string, ps ib.PortSpace, a netip.AddrPort, errno syscall.Errno) error {
	why := fmt.Sprintf("%v in the %s", a, portSpaceName(ps))
	return cmFail(op, why, errno)
}

// stateFail is a call in the wrong state: EINVAL, as of the kernel.
func stateFail(op string, s idState) error {
	return cmFail(op, "id is "+s.String(), syscall.EINVAL)
}

// notHere is a call that this device does not have.
func notHere(op, what string) error {
	return cmFail(op, what, errors.ErrUnsupported)
}
