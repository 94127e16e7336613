package rdmatest

import "net/netip"

// Carry takes a datagram over to another network. payload is valid only during the call.
type Carry func(from, to netip.AddrPort, payload []byte, tos uint8)

// Uplink connects the fabric with another network, on which there may be devices of
// another kind. What hosts send to an address that the fabric does not know goes to out,
// and so does what a test injects or forges; out must not block, nor call the fabric. What
// the caller gives to in enters the fabric as if it had been sent there. Rules see both.
// A fabric has one uplink, and time must be real. in may be called after the end of the
// test, and does nothing then.
func (f *Fabric) Uplink(out Carry) (in Carry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.uplink != nil {
		f.tb.Error("fabric: a second uplink")
	}
	f.uplink = out
	return func(from, to netip.AddrPort, payload []byte, tos uint8) {
		d := newDatagram(from, to, payload, tos)
		d.device = true // as far as captures go
		f.send(d)
	}
}
