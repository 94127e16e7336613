package lab_test

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

// kernelHolds is what the kernel has of all processes' objects, by device and kind, and of this
// process's memory.
type kernelHolds []string

// holdKernel says what the kernel has once the library has what it keeps for ever: the device
// open, a channel of the connection manager, and the domain that librdmacm makes for a device when
// the first id is bound to it.
func holdKernel(t *testing.T, a netip.Addr) kernelHolds {
	t.Helper()
	p, err := ibverbs.New()
	if err == nil {
		_, err = verbs.Open(p, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	id, err := cm.NewID(p, ib.PortSpaceTCP)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(id.Bind(netip.AddrPortFrom(a, 0)), id.Close()); err != nil {
		t.Fatal(err)
	}
	return kernelHas(t)
}

var (
	resource = regexp.MustCompile(`(pd|cq|qp|cm_id|mr|ctx|srq) [0-9]+`)
	pinned   = regexp.MustCompile(`(?m)^VmPin:.*$`)
)

func kernelHas(t *testing.T) kernelHolds {
	t.Helper()
	out, err := exec.Command("rdma", "resource", "show").CombinedOutput()
	if err != nil {
		t.Fatalf("rdma resource show: %v\n%s", err, out)
	}
	var has kernelHolds
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 2 {
			for _, kind := range resource.FindAllString(line, -1) {
				has = append(has, f[1]+" "+kind)
			}
		}
	}
	if len(has) == 0 {
		t.Fatalf("rdma resource show says %q", out)
	}
	return append(has, vmPin(t))
}

// vmPin says how much memory of this process is pinned.
func vmPin(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	return pinned.FindString(string(b))
}

// same fails a test if the kernel has other objects than it had. It takes some back a moment after
// they were given up.
func (before kernelHolds) same(t *testing.T) {
	t.Helper()
	var now kernelHolds
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if now = kernelHas(t); slices.Equal(before, now) {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	out, _ := exec.Command("sh", "-c", "for k in qp cq mr pd cm_id ctx; do rdma resource show $k; done").CombinedOutput()
	t.Errorf("the kernel had %s; it has %s\n%s", strings.Join(before, ", "), strings.Join(now, ", "), out)
}
