package ibverbs

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestNew: without libraries the error says what was looked for, with them the provider
// works whether or not there is a device.
func TestNew(t *testing.T) {
	t.Parallel()
	p, err := New()
	if err != nil {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v is not errors.ErrUnsupported", err)
		}
		if s := err.Error(); !strings.Contains(s, "tried libibverbs.so.1") && !strings.Contains(s, "cgo") && !strings.Contains(s, "Linux") {
			t.Errorf("%q does not say what is missing", s)
		}
		if p != nil {
			t.Error("a provider and an error")
		}
		if ok, why := p.Active(); ok || why == "" {
			t.Error(ok, why)
		}
		return
	}
	if again, _ := New(); again != p {
		t.Error("two providers in one process")
	}
	if p.Name() != "kernel" {
		t.Error(p.Name())
	}
	infos, err := p.Devices()
	if err != nil {
		t.Fatal(err)
	}
	ok, why := p.Active()
	t.Log(ok, why)
	if why == "" || ok && len(infos) == 0 {
		t.Errorf("%d devices, active %v, %q", len(infos), ok, why)
	}
	if _, err := p.OpenDevice("nosuch"); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("open of a device that is not there: %v", err)
	}
	if len(infos) > 0 {
		return
	}
	m, err := p.OpenCM()
	if err != nil {
		t.Fatal(err)
	}
	if _, statErr := os.Stat("/dev/infiniband/rdma_cm"); statErr == nil {
		return
	}
	if _, err := m.OpenChannel(); !errors.Is(err, syscall.ENODEV) && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ENOSYS) {
		t.Errorf("channel without a device: %v", err)
	}
}
