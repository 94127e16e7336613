package rdma_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// addressesEnv has tests use a kernel's device: it names the addresses of the server's end
// and of the client's. It is set in the lab (docs/lab.md), which runs those tests that
// need neither a network in memory nor virtual time. An end may be the embedded device's, in
// a network namespace, as the kernel's has the UDP port of every address in its own:
// ADDRESS@NAMESPACE.
const addressesEnv = "RDMA_TEST_ADDRESSES"

// onKernel gives the places of the lab, and nil outside of it.
func onKernel(t testing.TB) *place {
	t.Helper()
	var ends [2]*end
	for i := range ends {
		var err error
		if ends[i], err = labEnd(i); err != nil {
			t.Fatal(err)
		}
	}
	if ends[0] == nil {
		return nil
	}
	return &place{name: "kernel", server: ends[0].p, client: ends[1].p, address: netip.AddrPortFrom(ends[0].addr, 0).String(), from: ends[1].addr}
}

// together has a test run beside others in the lab, where most of its time is waiting.
func together(t *testing.T) {
	t.Helper()
	if onKernel(t) != nil {
		t.Parallel()
	}
}

// kernelServes reports whether the server's end is a kernel's device.
func (p *place) kernelServes() bool {
	_, soft := p.server.(*softroce.Provider)
	return p.fabric == nil && !soft
}

// end is a device of the lab, and its address.
type end struct {
	p    verbs.Provider
	addr netip.Addr
}

var labEnds struct {
	mu   sync.Mutex
	have map[string]*end
}

// labEnd gives the end of the server (0) or of the client (1), and nil outside of the lab. It
// stays open until the process ends, so that no test has leaked it.
func labEnd(i int) (*end, error) {
	server, client, ok := strings.Cut(os.Getenv(addressesEnv), ",")
	if !ok {
		return nil, nil
	}
	spec := [2]string{server, client}[i]
	labEnds.mu.Lock()
	defer labEnds.mu.Unlock()
	if e := labEnds.have[spec]; e != nil {
		return e, nil
	}
	address, namespace, soft := strings.Cut(spec, "@")
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return nil, err
	}
	e := &end{addr: addr}
	if soft {
		err = e.openSoft(namespace)
	} else {
		err = e.openKernel()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", spec, err)
	}
	if labEnds.have == nil {
		labEnds.have = map[string]*end{}
	}
	labEnds.have[spec] = e
	return e, nil
}

func (e *end) openKernel() (err error) {
	if e.p, _, err = rdma.Provider(rdma.Kernel); err != nil {
		return err
	}
	all, err := verbs.Devices(e.p)
	if err != nil {
		return err
	}
	for _, d := range all {
		if _, err := verbs.Open(e.p, d.Name); err != nil {
			return err
		}
	}
	return e.listen()
}

func (e *end) openSoft(namespace string) (err error) {
	if e.p, err = softroce.New(&softroce.Config{Addrs: []netip.Addr{e.addr}, MTU: 4200}); err != nil {
		return err
	}
	return inNamespace(namespace, e.listen) // a socket stays where it was opened
}

// listen opens what is opened with the first listener.
func (e *end) listen() error {
	cfg := &rdma.Config{Provider: e.p}
	l, err := (&rdma.ListenConfig{Config: cfg}).Listen(context.Background(), "rdma", netip.AddrPortFrom(e.addr, 0).String())
	if err != nil {
		return err
	}
	return l.Close()
}
