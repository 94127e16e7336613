package softroce

import (
	"bufio"
	"io"
	"net/netip"
	"testing"
)

// PeerRoles are the roles of a second process that the tests above this package add.
var PeerRoles = map[string]func(in *bufio.Reader) error{}

// StartPeer starts a second process; it ends with the test.
func StartPeer(t testing.TB, role string) (in io.Writer, out *bufio.Reader) {
	p := startPeer(t, role)
	return p.in, p.out
}

// Loopback takes a loopback address for the process.
func Loopback(p *Provider) (netip.Addr, error) { return p.dev.loopback() }
