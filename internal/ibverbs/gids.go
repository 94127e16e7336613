//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// GIDs reads the occupied entries of the GID tables of all ports (ibv_query_gid_table).
func (d *deviceContext) GIDs() ([]driver.GIDEntry, error) {
	a, err := d.QueryDevice()
	if err != nil {
		return nil, err
	}
	sizes := make([]int, a.Ports+1)
	total := 0
	for n := 1; n <= a.Ports; n++ {
		p, err := d.QueryPort(n)
		if err != nil {
			return nil, err
		}
		sizes[n] = p.GIDs
		total += p.GIDs
	}
	if total == 0 {
		return nil, nil
	}
	table := make([]C.struct_vb_gid, total)
	var got C.uint32_t
	e := C.vb_gid_table(d.c, &table[0], C.uint32_t(total), &got)
	if e == C.int(syscall.EOPNOTSUPP) {
		return d.gidsOneByOne(sizes)
	}
	if err := d.fail(e); err != nil {
		return nil, err
	}
	gids := make([]driver.GIDEntry, 0, got)
	for _, g := range table[:got] {
		gids = append(gids, driver.GIDEntry{
			GID:     gidOf(&g.gid),
			Index:   int(g.index),
			Port:    int(g.port),
			Type:    ib.GIDType(g._type),
			IfIndex: int(g.ifindex),
		})
	}
	return gids, nil
}

func gidOf(b *[16]C.uint8_t) (g ib.GID) {
	for i := range g {
		g[i] = byte(b[i])
	}
	return g
}

// gidsOneByOne is for libraries before 33, which cannot give the table. The kernel's files
// say of which type an entry is.
func (d *deviceContext) gidsOneByOne(sizes []int) ([]driver.GIDEntry, error) {
	var gids []driver.GIDEntry
	for port := 1; port < len(sizes); port++ {
		for i := range sizes[port] {
			var raw [16]C.uint8_t
			if err := d.fail(C.vb_query_gid(d.c, C.int(port), C.int(i), &raw[0])); err != nil {
				return nil, err
			}
			if g := gidOf(&raw); !g.IsZero() {
				t, ifindex := d.gidAttr(port, i)
				gids = append(gids, driver.GIDEntry{GID: g, Index: i, Port: port, Type: t, IfIndex: ifindex})
			}
		}
	}
	return gids, nil
}

// gidAttr reads what the kernel's files say of an entry.
func (d *deviceContext) gidAttr(port, index int) (t ib.GIDType, ifindex int) {
	read := func(what string) string {
		b, err := os.ReadFile(fmt.Sprintf("%s/ports/%d/gid_attrs/%s/%d", d.info.Path, port, what, index))
		if err != nil {
			return "" // an old kernel: everything is as on InfiniBand
		}
		return strings.TrimSpace(string(b))
	}
	if dev, err := net.InterfaceByName(read("ndevs")); err == nil {
		ifindex = dev.Index
	}
	switch read("types") {
	case "RoCE v2":
		return ib.GIDTypeRoCEv2, ifindex
	case "IB/RoCE v1":
		if ifindex != 0 {
			return ib.GIDTypeRoCEv1, ifindex
		}
	}
	return ib.GIDTypeIB, ifindex
}
