package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
	"unicode"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

var update = flag.Bool("update", false, "write the golden files of devices")

// refusing is a provider whose devices do not open.
type refusing struct {
	driver.Provider
	err error
}

func (r *refusing) OpenDevice(string) (driver.Context, error) { return nil, r.err }

// machine is an inspector of a system that the test describes: a kernel with one device,
// and the embedded device.
func machine(t *testing.T) *inspector {
	t.Helper()
	gids := []driver.GIDEntry{
		{GID: ib.GIDFromAddr(netip.MustParseAddr("fe80::1")), Port: 1, Type: ib.GIDTypeRoCEv1, IfIndex: 2},
		{GID: ib.GIDFromAddr(netip.MustParseAddr("10.0.0.1")), Index: 1, Port: 1, Type: ib.GIDTypeRoCEv1, IfIndex: 2},
		{GID: ib.GIDFromAddr(netip.MustParseAddr("10.0.0.1")), Index: 2, Port: 1, Type: ib.GIDTypeRoCEv2, IfIndex: 2},
	}
	port := driver.PortAttr{
		State: ib.PortActive, Phys: ib.PhysLinkUp, Link: ib.LinkEthernet, MaxMTU: ib.MTU4096, ActiveMTU: ib.MTU1024,
		GIDs: 16, PKeys: 1, MaxMessage: 1 << 30, SpeedMbps: 25000,
	}
	attr := driver.DeviceAttr{
		Firmware: "16.35", NodeGUID: 0x5a, VendorID: 0x2c9, VendorPartID: 4119, Ports: 1, MaxQP: 100, MaxQPWR: 1000, MaxSGE: 30, MaxCQ: 50, MaxCQE: 4000,
		MaxMRSize: 1<<64 - 1, MaxMR: 10, Caps: ib.DeviceCaps(1 << 10), Atomic: ib.AtomicHCA,
	}
	k := scripted.New(&scripted.Config{Devices: []string{"mlx5_0"}, Kernel: true, Attr: attr, Port: port, GIDs: gids})
	k.SetCM(func() (driver.CM, error) { return nil, nil })
	attr.Firmware, attr.VendorID, attr.MaxMRSize = "", 0, 1<<40
	s := scripted.New(&scripted.Config{Devices: []string{"soft0"}, Attr: attr, Port: port, GIDs: gids[2:]})
	in := &inspector{
		sources: []providerSource{{name: "kernel", p: k}, {name: "soft", p: s}},
		chosen:  providerSource{name: "kernel", p: k},
		why:     "kernel devices: mlx5_0 port 1 is active",
		root:    fstest.MapFS{"dev/infiniband/rdma_cm": {Mode: 0o666}},
		netDev:  func(i int) string { return map[int]string{2: "eth0"}[i] },
		memlock: 64 << 10,
		local: func(context.Context, string) (net.Addr, error) {
			return &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 5}, nil
		},
		resolve: func(context.Context, verbs.Provider, string) (routeInfo, error) {
			return routeInfo{"mlx5_0", 1, netip.MustParseAddr("10.0.0.1")}, nil
		},
	}
	return in
}

// without makes the machine one without devices of the kernel.
func (in *inspector) without(err error, root fs.FS) {
	in.sources[0].p, in.sources[0].err = &none{in.sources[0].p}, err
	in.chosen, in.why, in.root = in.sources[1], "embedded device: the kernel has no RDMA device", root
	in.resolve = func(context.Context, verbs.Provider, string) (routeInfo, error) {
		return routeInfo{"soft0", 1, netip.MustParseAddr("10.0.0.1")}, nil
	}
}

// none is a provider without devices.
type none struct{ driver.Provider }

func (*none) Devices() ([]driver.DeviceInfo, error) { return nil, nil }

func show(in *inspector, to string, asJSON bool) (out string, err error) {
	var b bytes.Buffer
	var d *destination
	if to != "" {
		if d, err = findDestination(context.Background(), to); err != nil {
			return "", err
		}
	}
	err = showDevices(context.Background(), &env{cmd: devicesCommand, stdout: &b}, in, d, asJSON, time.Minute)
	return b.String(), err
}

// TestDevicesGolden: what is shown, in every case, is what it was; -update writes it anew.
func TestDevicesGolden(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		to   string
		set  func(in *inspector)
		err  string // part
	}{
		{"kernel", "10.0.0.9", func(*inspector) {}, ""},
		{"no-device", "10.0.0.9", func(in *inspector) { in.without(nil, fstest.MapFS{}) }, ""},
		{"no-libraries", "", func(in *inspector) {
			in.without(fmt.Errorf("no RDMA libraries: tried libibverbs.so.1 (not found): %w", errors.ErrUnsupported), fstest.MapFS{})
		}, ""},
		{"no-cgo", "", func(in *inspector) {
			in.without(fmt.Errorf("built without cgo: %w", errors.ErrUnsupported), fstest.MapFS{})
			in.cgo = "0"
		}, ""},
		{"no-plugin", "", func(in *inspector) {
			in.without(nil, fstest.MapFS{"sys/class/infiniband/mlx5_0/x": {}, "sys/class/infiniband_verbs/uverbs0/x": {}, "dev/infiniband/uverbs0": {}})
		}, ""},
		{"no-files", "", func(in *inspector) {
			in.without(nil, fstest.MapFS{"sys/class/infiniband/mlx5_0/x": {}, "sys/class/infiniband_verbs/uverbs0/x": {}})
		}, ""},
		{"no-uverbs", "", func(in *inspector) { in.without(nil, fstest.MapFS{"sys/class/infiniband/mlx5_0/x": {}}) }, ""},
		{"no-permission", "", func(in *inspector) {
			in.sources[0].p = &refusing{in.sources[0].p, fmt.Errorf("/dev/infiniband/uverbs0: %w", syscall.EACCES)}
			in.root = denied{}
		}, ""},
		{"no-file", "", func(in *inspector) {
			in.sources[0].p = &refusing{in.sources[0].p, fmt.Errorf("/dev/infiniband/uverbs0: %w", syscall.ENOENT)}
			in.root = fstest.MapFS{}
		}, ""},
		{"down", "10.0.0.9", func(in *inspector) {
			p := in.sources[0].p.(*scripted.Provider)
			a := scripted.DefaultPort()
			a.State, a.Phys = ib.PortDown, ib.PhysDisabled
			p.Device("mlx5_0").SetPort(a)
			in.resolve = func(context.Context, verbs.Provider, string) (routeInfo, error) {
				return routeInfo{}, syscall.ENETUNREACH
			}
		}, "no device for 10.0.0.9"},
		{"elsewhere", "10.0.0.9", func(in *inspector) {
			in.local = func(context.Context, string) (net.Addr, error) {
				return &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1)}, nil
			}
			in.resolve = func(context.Context, verbs.Provider, string) (routeInfo, error) { return routeInfo{}, syscall.ENODEV }
		}, "no device for 10.0.0.9"},
		{"no-route", "10.0.0.9", func(in *inspector) {
			in.local = func(context.Context, string) (net.Addr, error) { return nil, syscall.ENETUNREACH }
			in.resolve = func(context.Context, verbs.Provider, string) (routeInfo, error) {
				return routeInfo{}, context.DeadlineExceeded
			}
		}, "no device for 10.0.0.9"},
		{"held", "10.0.0.2", func(in *inspector) {
			in.resolve = func(context.Context, verbs.Provider, string) (routeInfo, error) {
				return routeInfo{}, fmt.Errorf("10.0.0.2:4791 is held by process 7: %w", syscall.EADDRINUSE)
			}
		}, "no device for 10.0.0.2"},
		{"refused", "10.0.0.9", func(in *inspector) {
			in.without(fmt.Errorf("no RDMA libraries: %w", errors.ErrUnsupported), fstest.MapFS{})
			in.chosen = providerSource{err: errors.New("rdma: kernel devices: no RDMA libraries")}
		}, "no RDMA libraries"},
		{"rogue", "", func(in *inspector) {
			p := scripted.New(&scripted.Config{
				Devices: []string{"mlx\x1b[2J\u009b\u202e\n0\xff"}, Kernel: true,
				Attr: driver.DeviceAttr{Firmware: "\x1b]0;x\a", Ports: 1, MaxQP: 1},
			})
			in.sources[0].p = p
			in.why = "\x1b[31m"
			in.netDev = func(int) string { return "e\x1b\t0" }
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, form := range []string{"txt", "json"} {
				in := machine(t)
				c.set(in)
				out, err := show(in, c.to, form == "json")
				if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
					t.Errorf("%s: error %v", form, err)
				}
				for _, r := range out {
					if r != '\n' && !unicode.IsPrint(r) {
						t.Errorf("%s: %q in the output", form, r)
					}
				}
				if form == "json" && !json.Valid([]byte(out)) {
					t.Error("no JSON")
				}
				file := filepath.Join("testdata", "devices-"+c.name+"."+form)
				if *update {
					if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if out != string(want) {
					t.Errorf("%s:\n%s\nwant\n%s", form, out, want)
				}
			}
		})
	}
}

// denied is a file system that lets nobody in.
type denied struct{}

func (denied) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
}

// TestDevicesHere: the command runs on any machine, whatever that has.
func TestDevicesHere(t *testing.T) {
	t.Parallel()
	code, out, errs := here("devices")
	if code != exitOK || errs != "" || !strings.HasPrefix(out, "default   ") || !strings.Contains(out, "soft0") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	for _, addr := range []string{"127.0.0.1", "127.0.0.1:80", "::1"} {
		if addr == "::1" && !hasIPv6() {
			continue
		}
		p := start(t, []string{"VERBENA_PROVIDER=soft"}, "devices", "-json", addr)
		var r report
		if err := json.Unmarshal([]byte(p.ok()), &r); err != nil {
			t.Fatal(err)
		}
		if addr == "::1" && r.Address != nil && strings.Contains(r.Address.Error, "[::1]:4791 is held by process") {
			t.Logf("another test has it: %s", r.Address.Error) // there is one, and one process at a time has it
			continue
		}
		if r.Default.Provider != "soft" || r.Address == nil || r.Address.Device != "soft0" || r.Address.Port != 1 || len(r.Providers) != 2 {
			t.Errorf("%s: %+v", addr, r)
		}
	}
	p := start(t, []string{"VERBENA_PROVIDER=nonsense"}, "devices")
	code, stdout, stderr := p.end()
	if code != exitFailed || !strings.Contains(stdout, "default   none: ") || !strings.Contains(stderr, "use kernel, soft or auto") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

func hasIPv6() bool {
	c, err := net.ListenPacket("udp", "[::1]:0")
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func TestDevicesCommandLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args, stderr string
	}{
		{"devices -x", "-x"},
		{"devices a b", "one address"},
		{"devices -timeout 0 127.0.0.1", "-timeout"},
		{"devices 0.0.0.0", "not the one of a host"},
		{"devices [::]:9", "not the one of a host"},
		{"devices 224.0.0.1", "is a group"},
		{"devices ff02::1", "is a group"},
		{"devices fe80::1", "needs the link"},
		{"devices a:b:c", "no address"},
		{"devices 127.0.0.1:x", "no port number"},
	} {
		code, _, stderr := here(strings.Fields(c.args)...)
		if code != exitUsage || !strings.Contains(stderr, c.stderr) {
			t.Errorf("verbena %s: exit code %d\n%s", c.args, code, stderr)
		}
	}
	if code, out, _ := here("devices", "-h"); code != exitOK || !strings.Contains(out, "VERBENA_PROVIDER") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"rxe0":         "rxe0",
		"µs – ünïcode": "µs – ünïcode",
		"\x1b[31m\n":   `\x1b[31m\x0a`,
		"\u009b\u202e": `\u009b\u202e`,
		"\xff":         `\xff`,
		"\ufffd":       "\ufffd",
		"\U000e0001":   `\U000e0001`,
	} {
		if got := clean(in); got != want {
			t.Errorf("%q gives %q, want %q", in, got, want)
		}
	}
	if got := string(escapeJSON([]byte("\"\u009b\U000e0001ü\"\n"))); got != "\"\\u009b\\udb40\\udc01ü\"\n" {
		t.Errorf("%q", got)
	}
	for n, want := range map[uint64]string{0: "0 bytes", 100: "100 bytes", 65536: "64 KiB", 1 << 31: "2 GiB", 1<<64 - 1: "any"} {
		if got := size(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
