package softroce

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

const (
	// defaultPeerBuffer is what a peer's socket holds for certain if it has said
	// nothing: the default receive buffer of Linux, 212992 bytes, has room for about
	// 90 datagrams of 1 KiB or 25 of 4 KiB.
	defaultPeerBuffer = 64 << 10

	minPeerBuffer = 16 << 10
	maxPeerBuffer = 64 << 20

	// minWindow is what a queue pair gets however many share a buffer: a packet of the
	// largest path MTU, and its acknowledgement.
	minWindow = 4096 + 256

	// maxIdlePeers bounds the peers that are remembered without a queue pair.
	maxIdlePeers = 1024
)

// windows shares the receive buffer of each peer among the queue pairs that have
// something on their way to it.
type windows struct {
	mu    sync.Mutex
	peers map[netip.Addr]*peerBuffer
	idle  int // of peers: without queue pair
}

// peerBuffer is the receive buffer of one peer address.
type peerBuffer struct {
	bytes  atomic.Int64
	active atomic.Int64 // queue pairs that wait for an acknowledgement or data
	users  int          // queue pairs towards it; under windows.mu
}

func (w *windows) init() { w.peers = make(map[netip.Addr]*peerBuffer) }

// share is the part of one queue pair; counted says whether it is one of the active.
func (p *peerBuffer) share(counted bool) int {
	n := p.active.Load()
	if !counted {
		n++
	}
	return int(max(p.bytes.Load()/max(n, 1), minWindow))
}

// get gives the peer with one more user; put takes the user away.
func (w *windows) get(remote netip.Addr) *peerBuffer {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.peers[remote]
	switch {
	case p == nil:
		p = &peerBuffer{}
		p.bytes.Store(defaultPeerBuffer)
		w.peers[remote] = p
	case p.users == 0:
		w.idle--
	}
	p.users++
	return p
}

func (w *windows) put(remote netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.peers[remote]
	if p == nil {
		return
	}
	if p.users--; p.users == 0 {
		// What it said may be out of date when it is met again.
		delete(w.peers, remote)
	}
}

// setPeerBuffer says what the socket of a peer holds. It may be called before there is
// a queue pair towards it; such knowledge is bounded, and forgotten with the last
// queue pair.
func (w *windows) setPeerBuffer(remote netip.Addr, bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.peers[remote]
	if p == nil {
		if w.idle >= maxIdlePeers {
			for a, q := range w.peers {
				if q.users == 0 {
					delete(w.peers, a)
					w.idle--
					break
				}
			}
		}
		p = &peerBuffer{}
		w.peers[remote] = p
		w.idle++
	}
	p.bytes.Store(int64(min(max(bytes, minPeerBuffer), maxPeerBuffer)))
}

// setPeerBuffer is for the connection manager, which has been told by the peer.
func (d *device) setPeerBuffer(remote netip.Addr, bytes int) {
	d.window.setPeerBuffer(remote, bytes)
}
