package rdma_test

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestC262_Nettest is the test of package net's connections: on a real loopback, over a
// network in memory, by IPv4 and by IPv6, and over one that loses every hundredth packet, in
// both protocols.
func TestC262_Nettest(t *testing.T) {
	type somewhere struct {
		name  string
		place func(testing.TB) *place
	}
	places := []somewhere{
		{"loopback", onLoopback},
		{"fabric", onFabric},
		{"ipv6", func(t testing.TB) *place { return onFabric6(t, "fd00::1", "fd00::2") }},
		{"loss", func(t testing.TB) *place {
			p := onFabric(t)
			p.fabric.Loss(serverAddr, clientAddr, 0.01)
			p.fabric.Loss(clientAddr, serverAddr, 0.01)
			return p
		}},
	}
	lab := onKernel(t) != nil
	if lab {
		places = []somewhere{{"kernel", onKernel}}
		rdmatest.CheckLeaks(t)
	}
	for _, p := range places {
		for _, m := range modes {
			t.Run(p.name+"/"+m.name, func(t *testing.T) {
				if m.compatible || lab {
					t.Parallel() // its ends wait for one another, a second each time
				} else {
					rdmatest.CheckLeaks(t)
				}
				cfg := rdma.Config{Compatible: m.compatible}
				l := &rig{place: p.place(t), server: cfg, client: cfg}
				ln := l.listen(t)
				defer ln.Close()
				nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
					s, c := l.connect(t, ln)
					return s, c, func() { closeBoth(s, c) }, nil
				})
			})
		}
	}
}

// The fallback is a net.Conn as well.
func TestC300_NettestTCP(t *testing.T) {
	l := &rig{place: onLoopback(t), server: rdma.Config{Fallback: rdma.TCPFallback}}
	ln := l.listen(t)
	defer ln.Close()
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			return nil, nil, nil, err
		}
		s, err := ln.AcceptRDMA()
		if err != nil {
			return nil, nil, nil, err
		}
		return s, c, func() { closeBoth(s, c) }, nil
	})
}
