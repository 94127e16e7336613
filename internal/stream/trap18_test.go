package stream

import (
	"bufio"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
)

// TestTrap18_CapturesAreWhole: what the machine is held against is all that was said. A
// recording under load loses packets, and one with a short snap length cuts REQs: here no
// frame is cut, no packet is missing in the sequence of a queue pair, and each connection of
// streams has its REQ and its REP.
func TestTrap18_CapturesAreWhole(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(captures + "/*.pcap")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r, err := wire.NewPcapReader(bufio.NewReader(f))
		if err != nil {
			t.Fatal(err)
		}
		type way struct {
			to  netip.Addr
			qpn ib.QPN
		}
		next := map[way]ib.PSN{}
		name := filepath.Base(file)
		packets, requests, longest := 0, 0, 0
		for frame := 1; ; frame++ {
			_, b, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(b) < 14 || b[12] == 0x08 && b[13] == 0x06 {
				continue // ARP
			}
			d, ok := wire.ParseFrame(b)
			if !ok {
				if b[12] == 0x08 && b[14+9] == 17 || b[12] == 0x86 && b[14+6] == 17 {
					t.Errorf("%s: frame %d is cut", name, frame)
				}
				continue
			}
			var p wire.Packet
			if d.Dst.Port() != wire.Port {
				continue
			}
			if len(d.Payload) < 4 || p.Decode(d.Payload[:len(d.Payload)-4]) != nil {
				t.Errorf("%s: frame %d cannot be read", name, frame)
				continue
			}
			packets++
			if p.DestQP == 1 {
				if len(p.Payload) != 256 {
					t.Errorf("%s: frame %d is a message of the connection manager with %d bytes", name, frame, len(p.Payload))
				} else if p.Payload[16] == 0 && p.Payload[17] == 0x10 {
					requests++
					longest = max(longest, len(b))
				}
				continue
			}
			if p.Opcode.Service() != 0 || !p.Opcode.Has(wire.IsRequest) {
				continue
			}
			w := way{d.Dst.Addr(), p.DestQP}
			want, has := next[w]
			if gap := (p.PSN - want) & 0xFFFFFF; has && gap > 0 && gap < 1<<23 {
				t.Errorf("%s: frame %d: %d packets before it are missing", name, frame, gap)
			} else if !has || gap == 0 {
				next[w] = (p.PSN + 1) & 0xFFFFFF
			}
		}
		if packets == 0 || requests > 0 && longest < 322 {
			t.Errorf("%s: %d packets, %d requests of at most %d bytes", name, packets, requests, longest)
		}
	}
}
