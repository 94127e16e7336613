//go:build !linux || !cgo

package ibverbs

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Provider cannot be made in this build.
type Provider struct{}

var _ driver.Provider = (*Provider)(nil)

// errBuild says why there are no kernel devices.
var errBuild = func() error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("ibverbs: kernel RDMA devices exist on Linux, not on %s: %w", runtime.GOOS, errors.ErrUnsupported)
	}
	return fmt.Errorf("ibverbs: this program was built without cgo, which kernel RDMA devices need: %w", errors.ErrUnsupported)
}()

// New gives an error that wraps errors.ErrUnsupported.
func New() (*Provider, error) { return nil, errBuild }

// Active reports that no device can be used.
func (*Provider) Active() (ok bool, why string) { return false, errBuild.Error() }

func (*Provider) Name() string                              { return "kernel" }
func (*Provider) Devices() ([]driver.DeviceInfo, error)     { return nil, errBuild }
func (*Provider) OpenDevice(string) (driver.Context, error) { return nil, errBuild }
func (*Provider) OpenCM() (driver.CM, error)                { return nil, errBuild }
