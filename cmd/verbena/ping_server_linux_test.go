package main

import (
	"bytes"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/softroce"
)

// TestTCPPortInUse: a free port that TCP has not free is changed for another; one that the user has
// chosen is not, and the server goes on without TCP and says so, as it does when there is none.
func TestTCPPortInUse(t *testing.T) {
	t.Parallel()
	p, err := softroce.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ch, err := cm.NewEventChannel(p)
	if err != nil {
		t.Fatal(err)
	}
	defer ch.Close()
	chosen := netip.AddrPort{}
	for _, x := range []struct {
		name  string
		port  bool // as the one before
		used  int  // so many ports are not free for TCP
		tries int
		tcp   bool
	}{
		{"free", false, 0, 1, true},
		{"in use", false, 3, 4, true},
		{"never free", false, portTries, portTries, false},
		{"chosen", true, 1, 1, false},
	} {
		var stderr bytes.Buffer
		s := &server{o: &pingOptions{tcp: true}, e: &env{stderr: &stderr}}
		tries, last := 0, netip.AddrPort{}
		pid := os.Getpid() // an address that no other process has
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 32, byte(pid >> 8), byte(pid)}), 0)
		if x.port {
			at = chosen
		}
		tcp, err := s.listen(ch, at, func(a netip.AddrPort, o *pingOptions) (*tcpServer, error) {
			if tries++; tries <= x.used {
				return nil, os.NewSyscallError("bind", syscall.EADDRINUSE)
			}
			last = a
			return listenTCP(netip.AddrPortFrom(a.Addr(), 0), o) // which is free
		})
		if err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		if tries != x.tries || (tcp != nil) != x.tcp {
			t.Errorf("%s: %d tries, TCP %v; want %d, %v", x.name, tries, tcp != nil, x.tries, x.tcp)
		}
		if said := strings.Contains(stderr.String(), "no TCP beside RDMA"); said == x.tcp {
			t.Errorf("%s: standard error %q", x.name, stderr.String())
		}
		if tcp != nil {
			if last != s.ln.LocalAddr() {
				t.Errorf("%s: TCP on %v, RDMA on %v", x.name, last, s.ln.LocalAddr())
			}
			tcp.close()
		}
		chosen = s.ln.LocalAddr()
		if err := s.ln.Close(); err != nil {
			t.Error(err)
		}
	}
}
