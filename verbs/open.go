package verbs

import (
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Names of package driver that users need. What the fields of the structures mean is said
// there: go doc github.com/verbena-rdma/verbena/verbs/driver.QPAttr.
type (
	// Provider is a source of devices: rdma.Provider gives one, softroce.New another.
	Provider = driver.Provider
	// DeviceAttr are the limits and abilities of a device (struct ibv_device_attr_ex);
	// fields: driver.DeviceAttr.
	DeviceAttr = driver.DeviceAttr
	// PortAttr is the state of a port (struct ibv_port_attr); fields: driver.PortAttr.
	PortAttr = driver.PortAttr
	// GIDEntry is an entry of a GID table (struct ibv_gid_entry); fields: driver.GIDEntry.
	GIDEntry = driver.GIDEntry
	// AHAttr is the way to a peer (struct ibv_ah_attr); fields: driver.AHAttr.
	AHAttr = driver.AHAttr
	// QPAttr are the attributes of a queue pair (struct ibv_qp_attr); QP.Modify and
	// QP.Query say with a mask which of the fields are meant. Fields: driver.QPAttr.
	QPAttr = driver.QPAttr
)

// DeviceInfo names a device that can be opened (struct ibv_device). It is a value and
// stays valid when the device goes away; Open then fails.
type DeviceInfo struct {
	driver.DeviceInfo
	p driver.Provider
}

// Devices lists the devices of a provider (ibv_get_device_list). rdma.Provider
// gives the one to use. No device: an empty list and no error.
func Devices(p Provider) ([]DeviceInfo, error) {
	if p == nil {
		return nil, opError("list devices", nil, "", errNil)
	}
	list, err := p.Devices()
	if err != nil {
		return nil, opError("list devices", nil, "provider "+p.Name(), err)
	}
	infos := make([]DeviceInfo, len(list))
	for i, d := range list {
		infos[i] = DeviceInfo{d, p}
	}
	return infos, nil
}

// Open opens a device by name; the empty name takes the first with an active port, or
// the first if none is active (ibv_open_device). The error of a name that does not exist
// wraps ErrNoDevice and gives the names that do.
func Open(p Provider, name string) (*Device, error) {
	list, err := Devices(p)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return openFirst(p, list)
	}
	var names []string
	for _, d := range list {
		if d.Name == name {
			return d.Open()
		}
		names = append(names, d.Name)
	}
	hint := "there is none"
	if len(names) > 0 {
		hint = "there is " + strings.Join(names, ", ")
	}
	return nil, &OpError{Op: "open device", Device: name, Object: "provider " + p.Name(), Err: ErrNoDevice, Hint: hint}
}

func openFirst(p Provider, list []DeviceInfo) (*Device, error) {
	var first *Device
	var errs []error
	for _, i := range list {
		d, err := i.Open()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if first == nil {
			first = d
		}
		if d.hasActivePort() {
			return d, nil
		}
	}
	if first != nil {
		return first, nil
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return nil, &OpError{Op: "open device", Object: "provider " + p.Name(), Err: ErrNoDevice, Hint: "the provider lists none"}
}

func (d *Device) hasActivePort() bool {
	for n := 1; n <= d.limits.Ports; n++ {
		if a, err := d.Port(n); err == nil && a.State == ib.PortActive {
			return true
		}
	}
	return false
}

// sharedKey names a device of the process.
type sharedKey struct {
	p    driver.Provider
	name string
}

// devices are the open devices of the process. The shared ones stay until they are
// found to be gone.
var devices struct {
	sync.Mutex
	shared map[sharedKey]*Device
	all    map[*Device]struct{}
	sweep  int // number of shared ones at which to look for those that are gone
}

func allDevices() []*Device {
	devices.Lock()
	defer devices.Unlock()
	list := make([]*Device, 0, len(devices.all))
	for d := range devices.all {
		list = append(list, d)
	}
	return list
}

// Open gives the open device. A process has one Device for each, shared with the
// connection manager, so that what is made on it fits what package cm hands out;
// every Open gives the same object. It stays open as long as the process, as in
// librdmacm; after a removal, Open gives a new one.
func (i DeviceInfo) Open() (*Device, error) {
	if i.p == nil {
		return nil, opError("open device", nil, i.Name, errNil)
	}
	if !reflect.TypeOf(i.p).Comparable() {
		return nil, opError("open device", nil, i.Name,
			fmt.Errorf("provider of type %T cannot be shared: its type is not comparable: %w", i.p, syscall.EINVAL))
	}
	key := sharedKey{i.p, i.Name}
	devices.Lock()
	defer devices.Unlock()
	if d := devices.shared[key]; d != nil && !d.isGone() {
		return d, nil
	}
	sweepDevices()
	d, err := i.open(true)
	if err != nil {
		return nil, err
	}
	d.shared = true
	if devices.shared == nil {
		devices.shared = make(map[sharedKey]*Device)
	}
	if old := devices.shared[key]; old != nil {
		delete(devices.all, old)
	}
	devices.shared[key] = d
	return d, nil
}

// sweepDevices forgets the shared devices of providers that have ended, each time that
// their number has doubled: tests make and end providers by the thousand. devices is
// locked.
func sweepDevices() {
	if len(devices.shared) < max(devices.sweep, 16) {
		return
	}
	for k, d := range devices.shared {
		d.mu.Lock()
		_, err := d.c.QueryDevice()
		d.mu.Unlock()
		if errors.Is(err, ErrDeviceGone) || errors.Is(err, net.ErrClosed) {
			delete(devices.shared, k)
			delete(devices.all, d)
		}
	}
	devices.sweep = 2 * len(devices.shared)
}

// OpenPrivate opens the device once more, for isolation. Its objects do not fit
// the connection manager's ids.
func (i DeviceInfo) OpenPrivate() (*Device, error) {
	if i.p == nil {
		return nil, opError("open device", nil, i.Name, errNil)
	}
	devices.Lock()
	defer devices.Unlock()
	return i.open(false)
}

// open opens the device, for the process or for the caller alone. devices is locked.
func (i DeviceInfo) open(shared bool) (*Device, error) {
	fail := func(err error) (*Device, error) {
		return nil, &OpError{Op: "open device", Device: i.Name, Object: "provider " + i.p.Name(), Err: err}
	}
	open := i.p.OpenDevice
	if p, ok := i.p.(driver.SharedOpener); ok && shared {
		open = p.OpenShared
	}
	c, err := open(i.Name)
	if err != nil {
		return fail(err)
	}
	limits, err := c.QueryDevice()
	if err != nil {
		c.Close()
		return fail(err)
	}
	d := &Device{info: i, c: c, limits: limits}
	d.flushLimit.Store(int64(defaultFlushLimit))
	d.recheck.Store(int64(defaultRecheck))
	d.async.begin(d)
	d.born(d.destroy)
	if devices.all == nil {
		devices.all = make(map[*Device]struct{})
	}
	devices.all[d] = struct{}{}
	return d, nil
}

// destroy closes a private device after its last object.
func (d *Device) destroy() error {
	d.async.close()
	err := d.c.Close()
	devices.Lock()
	delete(devices.all, d)
	devices.Unlock()
	return opError("close device", d, "", err)
}
