package rdmatest

import (
	"net/netip"
	"sync"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
)

// addr gives the address of an end.
func (e *end) addr() netip.Addr { return e.gid.GID.Addr() }

// forge sends a packet to e as if from had sent it: addresses, queue pair number and
// P_Key are right, the rest is the caller's.
func (e *end) forge(from *end, p wire.Packet) { e.forgeFrom(from.addr(), p) }

func (e *end) forgeFrom(from netip.Addr, p wire.Packet) {
	p.DestQP, p.PKey, p.MigReq = e.qp.Num(), 0xFFFF, true
	e.Fabric.Forge(from, e.addr(), p.AppendTo(nil))
}

// settle waits until nothing happens any more without time passing. Where time is real it
// can only wait for as long as an answer takes on a slow machine.
func (t *tb) settle() {
	if t.Virtual {
		synctest.Wait()
		return
	}
	time.Sleep(300 * time.Millisecond)
}

// answers records what a queue pair is told by its peer, real or forged.
type answers struct {
	mu        sync.Mutex
	syndromes []uint8
	packets   int
	bytes     int
}

// listen records what arrives for e from an address.
func (e *end) listen(from netip.Addr) *answers {
	r := &answers{}
	n := e.qp.Num()
	e.Fabric.Rule(Rule{From: from, To: e.addr(), Match: func(d Datagram) bool { return d.DestQP == n }, See: func(d Datagram) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.packets++
		r.bytes += len(d.Payload)
		if d.Opcode == OpAcknowledge {
			r.syndromes = append(r.syndromes, d.AETH)
		}
	}})
	return r
}

// count gives how often a syndrome was seen.
func (r *answers) count(s wire.Syndrome) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.syndromes {
		if x == uint8(s) {
			n++
		}
	}
	return n
}

// total gives the number of packets and their bytes, and starts anew.
func (r *answers) total() (packets, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	packets, bytes = r.packets, r.bytes
	r.packets, r.bytes = 0, 0
	return packets, bytes
}

// mute loses what goes to e with one of some opcodes; Remove ends it.
func (e *end) mute(opcodes ...uint8) *Filter {
	n := e.qp.Num()
	return e.Fabric.Rule(Rule{To: e.addr(), Opcodes: opcodes, Match: func(d Datagram) bool { return d.DestQP == n }, Drop: true})
}

// readResponses are the opcodes of answers to a read.
var readResponses = []uint8{OpReadRespFirst, OpReadRespMiddle, OpReadRespLast, OpReadRespOnly}

// next24 is a packet number some steps away.
func next24(p ib.PSN, d int) ib.PSN { return ib.PSN(int64(p)+int64(d)) & 0xFFFFFF }
