package rdma_test

import (
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/verbs"
)

// addressesEnv has tests use a kernel's device: it names the addresses of the server's end
// and of the client's. It is set in the lab (docs/lab.md), which runs those tests that
// need neither a network in memory nor virtual time.
const addressesEnv = "RDMA_TEST_ADDRESSES"

// onKernel gives a kernel's device, and nil outside of the lab.
func onKernel(t testing.TB) *place {
	t.Helper()
	v := os.Getenv(addressesEnv)
	if v == "" {
		return nil
	}
	server, client, _ := strings.Cut(v, ",")
	s, err := netip.ParseAddr(server)
	if err != nil {
		t.Fatal(err)
	}
	c, err := netip.ParseAddr(client)
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := rdma.Provider(rdma.Kernel)
	if err != nil {
		t.Fatal(err)
	}
	address := netip.AddrPortFrom(s, 0).String()
	openKernel.Do(func() { // they stay open: no test has leaked them
		all, err := verbs.Devices(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range all {
			if _, err := verbs.Open(p, d.Name); err != nil {
				t.Fatal(err)
			}
		}
		l, err := (&rdma.ListenConfig{Config: &rdma.Config{Provider: p}}).Listen(t.Context(), "rdma", address)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	})
	return &place{name: "kernel", server: p, client: p, address: address, from: c}
}

var openKernel sync.Once
