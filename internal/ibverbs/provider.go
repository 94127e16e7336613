//go:build linux && cgo

package ibverbs

/*
#cgo CFLAGS: -O2 -Wall
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Provider gives the devices of the kernel. Its methods may be called from any goroutine.
// Those of a nil Provider, and of one that New did not make, give errors.
type Provider struct {
	cm error // why there is no connection manager; nil: there is one

	mu     sync.Mutex
	shared map[string]*deviceContext // by name
}

var (
	_ driver.Provider     = (*Provider)(nil)
	_ driver.SharedOpener = (*Provider)(nil)
)

// load makes the only provider: the connection manager's contexts belong to the process.
var load = sync.OnceValues(func() (*Provider, error) {
	l := C.vb_load()
	if l.verbs.there == 0 {
		return nil, fmt.Errorf("ibverbs: no RDMA libraries: tried %w", libraryError(C.VB_LIBIBVERBS, &l.verbs))
	}
	p := &Provider{shared: make(map[string]*deviceContext)}
	if l.cm.there == 0 {
		p.cm = fmt.Errorf("ibverbs: no connection manager: tried %w", libraryError(C.VB_LIBRDMACM, &l.cm))
	}
	return p, nil
})

func libraryError(file string, l *C.struct_vb_library) *LibraryError {
	return &LibraryError{
		Library: file,
		Symbol:  C.GoString(&l.lacks[0]),
		Version: C.GoString(&l.version[0]),
		Reason:  C.GoString(&l.why[0]),
	}
}

// errNil is the answer of a Provider that New did not make.
var errNil = fmt.Errorf("ibverbs: no provider: New gives one, or says why there is none: %w", errors.ErrUnsupported)

func (p *Provider) valid() error {
	if p == nil || p.shared == nil {
		return errNil
	}
	return nil
}

// New gives the process's provider of kernel devices; each call gives the same. The first
// loads the libraries (they stay loaded), which touches no device. The error says what
// was looked for, and is a LibraryError. Without librdmacm there are devices, and OpenCM
// gives such an error.
func New() (*Provider, error) { return load() }

// Name is "kernel".
func (*Provider) Name() string { return "kernel" }

// Devices lists the devices (ibv_get_device_list). A kernel without RDMA has none, which
// is no error.
func (p *Provider) Devices() ([]driver.DeviceInfo, error) {
	if err := p.valid(); err != nil {
		return nil, err
	}
	var list *C.struct_vb_device_info
	var n C.int
	if e := C.vb_list(&list, &n); e != 0 {
		return nil, fmt.Errorf("ibverbs: list of devices: %w", errOf(e))
	}
	defer C.vb_free(unsafe.Pointer(list))
	infos := make([]driver.DeviceInfo, 0, n)
	for _, d := range unsafe.Slice(list, n) {
		infos = append(infos, deviceInfo(&d))
	}
	return infos, nil
}

func deviceInfo(d *C.struct_vb_device_info) driver.DeviceInfo {
	return driver.DeviceInfo{
		Name:      C.GoString(&d.name[0]),
		Path:      C.GoString(&d.path[0]),
		GUID:      ib.GUID(d.guid),
		NodeType:  ib.NodeType(d.node_type),
		Transport: ib.Transport(d.transport),
		Index:     int(d.index),
	}
}

// OpenDevice opens a device once more (ibv_open_device), with asynchronous events of its
// own. ENODEV: there is none of that name. What the system refuses names the file.
func (p *Provider) OpenDevice(name string) (driver.Context, error) {
	c, err := p.open(name)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (p *Provider) open(name string) (*deviceContext, error) {
	if err := p.valid(); err != nil {
		return nil, err
	}
	n := C.CString(name)
	defer C.vb_free(unsafe.Pointer(n))
	var ctx *C.struct_abi_context
	var info C.struct_vb_device_info
	if e := C.vb_open(n, &ctx, &info); e != 0 {
		return nil, p.openError(name, C.GoString(&info.dev_name[0]), errOf(e))
	}
	return newContext(ctx, deviceInfo(&info), false), nil
}

// OpenShared gives the device's context of the connection manager, the same each time: it
// stays open as long as the process, and Close leaves it alone. So a program that uses
// both has one context, and one reader of its asynchronous events. Where there is no
// connection manager the context is one of OpenDevice.
func (p *Provider) OpenShared(name string) (driver.Context, error) {
	if err := p.valid(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.shared[name]
	if old != nil && !old.lost() {
		return old, nil
	}
	c, err := p.openShared(name, old)
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return nil, err
	case err != nil:
		if c, err = p.open(name); err != nil {
			return nil, err
		}
		c.shared = true
	}
	p.shared[name] = c
	return c, nil
}

func (p *Provider) openShared(name string, old *deviceContext) (*deviceContext, error) {
	if p.cm != nil {
		return nil, p.cm
	}
	n := C.CString(name)
	defer C.vb_free(unsafe.Pointer(n))
	var gone, ctx *C.struct_abi_context
	if old != nil && !old.released.Load() {
		gone = old.c
	}
	var info C.struct_vb_device_info
	cmLock.Lock()
	defer cmLock.Unlock()
	if e := C.vb_open_shared(n, gone, &ctx, &info); e != 0 {
		return nil, errOf(e)
	}
	return newContext(ctx, deviceInfo(&info), true), nil
}

// openError says what to do where a device cannot be opened. file is that of the device,
// empty if there is no such device.
func (p *Provider) openError(name, file string, err error) error {
	if file != "" {
		return fileError("/dev/infiniband/"+file, "ib_uverbs", err)
	}
	if !errors.Is(err, syscall.ENODEV) {
		return err
	}
	infos, e := p.Devices()
	if e != nil || len(infos) == 0 {
		return noDevices
	}
	var names []string
	for _, i := range infos {
		names = append(names, i.Name)
	}
	return noDevice(fmt.Sprintf("the kernel has %s, no %q", strings.Join(names, ", "), name))
}

// Active reports whether there is a connection manager, and a device that can be opened and
// has an active port, and says what was found in words for a log.
func (p *Provider) Active() (ok bool, why string) {
	infos, err := p.Devices()
	if err != nil {
		return false, err.Error()
	}
	if len(infos) == 0 {
		return false, "the kernel has no RDMA device"
	}
	if p.cm != nil {
		// Nothing that connects would work, and who needs no connection manager can ask for
		// this provider by its name.
		return false, p.cm.Error()
	}
	var found []string
	for _, i := range infos {
		ok, why := p.active(i.Name)
		if ok {
			return true, why
		}
		found = append(found, why)
	}
	return false, "no active port: " + strings.Join(found, "; ")
}

func (p *Provider) active(name string) (bool, string) {
	c, err := p.open(name)
	if err != nil {
		return false, fmt.Sprintf("%s: %v", name, err)
	}
	defer func() { _ = c.Close() }() // nothing was made of it
	a, err := c.QueryDevice()
	if err != nil {
		return false, fmt.Sprintf("%s: %v", name, err)
	}
	var ports []string
	for n := 1; n <= a.Ports; n++ {
		port, err := c.QueryPort(n)
		switch {
		case err != nil:
			ports = append(ports, fmt.Sprintf("port %d: %v", n, err))
		case port.State == ib.PortActive:
			return true, fmt.Sprintf("%s port %d is active", name, n)
		default:
			ports = append(ports, fmt.Sprintf("port %d is %v", n, port.State))
		}
	}
	return false, name + " " + strings.Join(ports, ", ")
}
