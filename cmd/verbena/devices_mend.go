package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs"
)

var zeroAttr = new(verbs.DeviceAttr)

var kernelName = rdma.Kernel.String() // of the provider

// Ways to mend, as they are shown.
const (
	mendBuild     = "build with CGO_ENABLED=1 and a C compiler"
	mendLibraries = "install the libraries: libibverbs1, ibverbs-providers and librdmacm1 (Debian, Ubuntu), libibverbs and librdmacm (Fedora, RHEL)"
	mendNoDevice  = "load the driver of the adapter, or make a software device on a network device, as root: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0"
	mendPlugin    = "the kernel has a device, but the libraries have no driver for it: install ibverbs-providers (Debian, Ubuntu), libibverbs (Fedora, RHEL); in a container, mount /etc/libibverbs.d too"
	mendUverbs    = "the kernel has a device, but nobody may use it from a program: modprobe ib_uverbs"
	mendAccess    = "the files in /dev/infiniband let this user not in: rdma-core's udev rules make them mode 0666; else chmod a+rw /dev/infiniband/*, or a group for them"
	mendFile      = "the device's file is missing: modprobe ib_uverbs; in a container, pass /dev/infiniband in (docker run --device /dev/infiniband)"
	mendUCM       = "/dev/infiniband/rdma_cm is missing, so nobody can connect: modprobe rdma_ucm; in a container, pass it in (docker run --device /dev/infiniband/rdma_cm)"
	mendUCMAccess = "/dev/infiniband/rdma_cm lets this user not in, so nobody can connect: rdma-core's udev rules make it mode 0666; else chmod a+rw /dev/infiniband/rdma_cm"
	mendLink      = "bring the link up: ip link set dev %s up"
)

// buildSetting gives what the build says of itself.
func buildSetting(key string) string {
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == key {
				return s.Value
			}
		}
	}
	return ""
}

// mendProvider says what helps if a provider cannot be had.
func (in *inspector) mendProvider(name string, err error) []string {
	switch {
	case name != kernelName, runtime.GOOS != "linux":
		return nil
	case in.cgo == "0":
		return []string{mendBuild}
	case errors.Is(err, errors.ErrUnsupported):
		return []string{mendLibraries}
	}
	return in.mendDevice(err)
}

// mendNone says why a provider may have no device.
func (in *inspector) mendNone(name string) []string {
	if name != kernelName {
		return nil
	}
	has := func(dir string) bool {
		l, err := fs.ReadDir(in.root, dir)
		return err == nil && len(l) > 0
	}
	switch {
	case !has("sys/class/infiniband"):
		return []string{mendNoDevice}
	case !has("sys/class/infiniband_verbs"):
		return []string{mendUverbs}
	case !has("dev/infiniband"):
		return []string{mendFile}
	}
	return []string{mendPlugin}
}

// mendDevice says what helps if a device does not open.
func (in *inspector) mendDevice(err error) []string {
	switch {
	case errors.Is(err, os.ErrPermission):
		return []string{mendAccess}
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENXIO):
		return []string{mendFile}
	}
	return nil
}

// mendCM says what helps if the kernel has devices and no connection manager.
func (in *inspector) mendCM(p verbs.Provider) []string {
	if _, err := p.OpenCM(); errors.Is(err, errors.ErrUnsupported) {
		return []string{err.Error() + ": " + mendLibraries}
	}
	f, err := in.root.Open("dev/infiniband/rdma_cm")
	switch {
	case err == nil:
		f.Close()
	case errors.Is(err, os.ErrPermission):
		return []string{mendUCMAccess}
	case errors.Is(err, os.ErrNotExist):
		return []string{mendUCM}
	}
	return nil
}

// mendPort says what helps if a port carries nothing.
func mendPort(p *portReport) string {
	if p.Error != "" || p.State == ib.PortActive.String() || p.Link != ib.LinkEthernet.String() {
		return ""
	}
	name := "NAME"
	for _, g := range p.GIDs {
		if g.NetDev != "" {
			name = g.NetDev
		}
	}
	return fmt.Sprintf(mendLink, name)
}

// memlock gives the bytes that this user may register; 0: no limit that matters. Memory
// of regions, and on most devices that of queues, counts.
func memlock() uint64 {
	n, err := unix.MemlockLimit()
	if err != nil || os.Geteuid() == 0 || n >= 1<<62 {
		return 0
	}
	return n
}
