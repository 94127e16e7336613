package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

var devicesCommand = &command{
	name:  "devices",
	args:  "[-flags] [ADDR]",
	short: "list the devices there are, which one is used, and why",
	run:   runDevices,
}

const devicesText = `
Devices lists the RDMA devices of the kernel and the embedded one: ports and their
state, GIDs and their type, MTU, network device, limits (with the names that
ibv_devinfo -v has). It says which provider programs get that do not ask for one, and
why; VERBENA_PROVIDER=kernel or soft decides otherwise. What is missing is named, with
the way to mend it.

  verbena devices              everything
  verbena devices ADDR         also: which device leads to that address

ADDR is an address or name, with or without port. The connection manager is asked for
the way, so a kernel device may have to find the neighbour on the link; -timeout bounds
that. No connection is made.`

// report is what the command finds, and its form in JSON.
type report struct {
	Default   defaultChoice    `json:"default"`
	Providers []providerReport `json:"providers"`
	Address   *addressReport   `json:"address,omitempty"`
}

// defaultChoice is what programs get that do not ask.
type defaultChoice struct {
	Provider string `json:"provider,omitempty"` // empty: none, see Error
	Why      string `json:"why,omitempty"`
	Error    string `json:"error,omitempty"`
}

// providerReport is a provider and its devices. A list that could not be had has an
// error; Mend says what to do about what is missing.
type providerReport struct {
	Name    string         `json:"name"`
	Error   string         `json:"error,omitempty"`
	Mend    []string       `json:"mend,omitempty"`
	Memlock uint64         `json:"memlock_limit,omitempty"` // bytes; absent: none
	Devices []deviceReport `json:"devices"`
}

type deviceReport struct {
	Name      string            `json:"name"`
	Error     string            `json:"error,omitempty"` // why the rest is missing
	Mend      []string          `json:"mend,omitempty"`
	Path      string            `json:"path,omitempty"`
	NodeType  string            `json:"node_type"`
	Transport string            `json:"transport"`
	GUID      ib.GUID           `json:"node_guid"`
	Firmware  string            `json:"fw_ver,omitempty"`
	Vendor    uint32            `json:"vendor_id,omitempty"`
	Part      uint32            `json:"vendor_part_id,omitempty"`
	HWVersion uint32            `json:"hw_ver,omitempty"`
	Atomic    string            `json:"atomic_cap,omitempty"`
	Caps      string            `json:"device_cap_flags,omitempty"`
	Limits    map[string]uint64 `json:"limits,omitempty"`
	Ports     []portReport      `json:"ports,omitempty"`
}

type portReport struct {
	Port       int         `json:"port"`
	Error      string      `json:"error,omitempty"`
	State      string      `json:"state,omitempty"`
	Phys       string      `json:"physical_state,omitempty"`
	Link       string      `json:"link_layer,omitempty"`
	MaxMTU     int         `json:"max_mtu,omitempty"`
	ActiveMTU  int         `json:"active_mtu,omitempty"`
	SpeedMbps  int         `json:"speed_mbps,omitempty"`
	LID        uint32      `json:"lid,omitempty"`
	SMLID      uint32      `json:"sm_lid,omitempty"`
	MaxMessage uint32      `json:"max_msg_sz,omitempty"`
	GIDs       []gidReport `json:"gids"`
}

type gidReport struct {
	Index   int    `json:"index"`
	GID     string `json:"gid"`
	Address string `json:"address,omitempty"` // where the GID is one of an IP address
	Type    string `json:"type"`
	NetDev  string `json:"netdev,omitempty"`
	MTU     int    `json:"mtu,omitempty"` // the largest path MTU from here

	gid ib.GID
}

// providerSource is a provider, or why there is none.
type providerSource struct {
	name string
	p    verbs.Provider
	err  error
}

// inspector finds out. Tests have a system of their own.
type inspector struct {
	sources []providerSource
	chosen  providerSource // of programs that do not ask
	why     string
	root    fs.FS // the file system
	netDev  func(index int) string
	local   func(ctx context.Context, to string) (net.Addr, error) // of the route to an address
	resolve func(ctx context.Context, p verbs.Provider, to string) (routeInfo, error)
	cgo     string // what the build says of CGO_ENABLED
	memlock uint64 // see memlock
}

func newInspector() *inspector {
	in := &inspector{
		root:    os.DirFS("/"),
		netDev:  netDevName,
		local:   localAddr,
		resolve: resolveRoute,
		cgo:     buildSetting("CGO_ENABLED"),
		memlock: memlock(),
	}
	for _, c := range []rdma.Choice{rdma.Kernel, rdma.Soft} {
		p, _, err := rdma.Provider(c)
		in.sources = append(in.sources, providerSource{c.String(), p, err})
	}
	p, why, err := rdma.Provider(rdma.Auto)
	in.chosen, in.why = providerSource{p: p, err: err}, why
	if err == nil {
		in.chosen.name = p.Name()
	}
	return in
}

func netDevName(index int) string {
	if index == 0 {
		return ""
	}
	i, err := net.InterfaceByIndex(index)
	if err != nil {
		return fmt.Sprintf("#%d", index) // gone meanwhile, or in another network namespace
	}
	return i.Name
}

func runDevices(ctx context.Context, e *env, args []string) error {
	fs := e.flags()
	asJSON := fs.Bool("json", false, "write JSON")
	timeout := fs.Duration("timeout", 3*time.Second, "give up the way to ADDR after that time")
	if err := e.parse(fs, args, devicesText); err != nil {
		return err
	}
	if fs.NArg() > 1 {
		return &usageError{text: fmt.Sprintf("one address, not %d", fs.NArg())}
	}
	if *timeout <= 0 {
		return &usageError{text: "-timeout must be more than 0"}
	}
	var to *destination
	if fs.NArg() == 1 {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		d, err := findDestination(ctx, fs.Arg(0))
		if err != nil {
			return err
		}
		to = d
	}
	return showDevices(ctx, e, newInspector(), to, *asJSON, *timeout)
}

// showDevices writes the report. That programs cannot have what VERBENA_PROVIDER asks
// for, or that no device leads to the address, is an error at the end of it.
func showDevices(ctx context.Context, e *env, in *inspector, to *destination, asJSON bool, timeout time.Duration) error {
	r := in.report()
	if to != nil {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		r.Address = in.address(ctx, r, to)
	}
	if asJSON {
		b, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if _, err := e.stdout.Write(append(escapeJSON(b), '\n')); err != nil {
			return err
		}
	} else if err := printReport(e.stdout, r); err != nil {
		return err
	}
	switch {
	case r.Default.Error != "":
		return errors.New(clean(r.Default.Error))
	case r.Address != nil && r.Address.Device == "":
		return fmt.Errorf("no device for %s", clean(r.Address.Address))
	}
	return nil
}

// report finds out all but the way to an address.
func (in *inspector) report() *report {
	r := &report{Default: defaultChoice{Provider: in.chosen.name, Why: in.why}}
	if in.chosen.err != nil {
		r.Default = defaultChoice{Error: in.chosen.err.Error()}
	}
	for _, s := range in.sources {
		r.Providers = append(r.Providers, in.provider(s))
	}
	return r
}

func (in *inspector) provider(s providerSource) providerReport {
	r := providerReport{Name: s.name, Devices: []deviceReport{}}
	err := s.err
	var list []verbs.DeviceInfo
	if err == nil {
		list, err = verbs.Devices(s.p)
	}
	if err != nil {
		r.Error = err.Error()
		r.Mend = in.mendProvider(s.name, err)
		return r
	}
	if len(list) == 0 {
		r.Mend = in.mendNone(s.name)
	}
	for _, i := range list {
		r.Devices = append(r.Devices, in.device(i))
	}
	if len(list) > 0 && s.name == kernelName {
		r.Mend = append(r.Mend, in.mendCM(s.p)...)
		r.Memlock = in.memlock
	}
	return r
}

// device opens a device for itself, so that it can be closed again.
func (in *inspector) device(i verbs.DeviceInfo) deviceReport {
	r := deviceReport{
		Name:      i.Name,
		Path:      i.Path,
		NodeType:  i.NodeType.String(),
		Transport: i.Transport.String(),
		GUID:      i.GUID,
	}
	fail := func(err error) deviceReport {
		r.Error = err.Error()
		r.Mend = in.mendDevice(err)
		return r
	}
	d, err := i.OpenPrivate()
	if err != nil {
		return fail(err)
	}
	defer d.Close()
	a, err := d.Attr()
	if err != nil {
		return fail(err)
	}
	r.GUID = a.NodeGUID
	r.Firmware, r.Vendor, r.Part, r.HWVersion = a.Firmware, a.VendorID, a.VendorPartID, a.HWVersion
	r.Atomic, r.Caps = a.Atomic.String(), a.Caps.String()
	r.Limits = make(map[string]uint64)
	for _, l := range limits(&a) {
		if l.value != 0 {
			r.Limits[l.name] = l.value
		}
	}
	gids, err := d.GIDs()
	if err != nil {
		return fail(err)
	}
	for n := 1; n <= a.Ports; n++ {
		r.Ports = append(r.Ports, in.port(d, n, gids))
		if why := mendPort(&r.Ports[n-1]); why != "" {
			r.Mend = append(r.Mend, why)
		}
	}
	return r
}

func (in *inspector) port(d *verbs.Device, n int, gids []verbs.GIDEntry) portReport {
	r := portReport{Port: n, GIDs: []gidReport{}}
	a, err := d.Port(n)
	if err != nil {
		r.Error = err.Error()
		return r
	}
	r.State, r.Phys, r.Link = a.State.String(), a.Phys.String(), a.Link.String()
	r.MaxMTU, r.ActiveMTU, r.SpeedMbps = a.MaxMTU.Bytes(), a.ActiveMTU.Bytes(), a.SpeedMbps
	r.LID, r.SMLID, r.MaxMessage = uint32(a.LID), uint32(a.SMLID), a.MaxMessage
	for _, g := range gids {
		if g.Port != n {
			continue
		}
		e := gidReport{Index: g.Index, GID: g.GID.String(), Type: g.Type.String(), NetDev: in.netDev(g.IfIndex), gid: g.GID}
		if a.Link == ib.LinkEthernet {
			e.Address = g.GID.Addr().String()
		}
		if e.MTU = a.ActiveMTU.Bytes(); g.MTU != 0 {
			e.MTU = g.MTU.Bytes()
		}
		r.GIDs = append(r.GIDs, e)
	}
	return r
}

// limit is one of a device, with the name that it has in C.
type limit struct {
	name  string
	value uint64
}

func limits(a *verbs.DeviceAttr) []limit {
	n := func(v int) uint64 { return uint64(max(v, 0)) }
	return []limit{
		{"max_qp", n(a.MaxQP)}, {"max_qp_wr", n(a.MaxQPWR)}, {"max_sge", n(a.MaxSGE)}, {"max_sge_rd", n(a.MaxSGERead)},
		{"max_cq", n(a.MaxCQ)}, {"max_cqe", n(a.MaxCQE)}, {"max_mr", n(a.MaxMR)}, {"max_mr_size", a.MaxMRSize},
		{"max_pd", n(a.MaxPD)}, {"max_mw", n(a.MaxMW)}, {"max_ah", n(a.MaxAH)},
		{"max_qp_rd_atom", n(a.MaxQPRDAtomic)}, {"max_qp_init_rd_atom", n(a.MaxQPInitRDAtomic)},
		{"max_srq", n(a.MaxSRQ)}, {"max_srq_wr", n(a.MaxSRQWR)}, {"max_srq_sge", n(a.MaxSRQSGE)},
		{"max_mcast_grp", n(a.MaxMcastGroups)}, {"max_mcast_qp_attach", n(a.MaxMcastQPAttach)},
		{"max_pkeys", n(a.MaxPKeys)}, {"num_comp_vectors", n(a.CompVectors)}, {"page_size_cap", a.PageSizes},
	}
}
