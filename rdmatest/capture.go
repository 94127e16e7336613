package rdmatest

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/wire"
)

// PcapDirEnv names the directory for captures.
const PcapDirEnv = "VERBENA_PCAP_DIR"

// Limits of a file in bytes of payload: that of Capture, and that of
// VERBENA_PCAP_DIR, of which a run of the suite makes hundreds.
const (
	captureLimit    = 64 << 20
	captureEnvLimit = 1 << 20
)

// capture writes datagrams as a pcap file. A nil capture writes nothing. The fabric's
// lock guards it.
type capture struct {
	buf  *bufio.Writer
	w    *wire.PcapWriter
	c    io.Closer // nil: the caller's
	left int
	only bool // what devices send
	err  error
}

// Capture writes what is sent from now on, as it arrives, to w, as a pcap file of
// Ethernet frames. What a rule altered, and what a test injected, is left out. The file is complete when the fabric is closed; after 64 MiB it ends.
func (f *Fabric) Capture(w io.Writer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capture = newCapture(w, nil, captureLimit)
}

func newCapture(w io.Writer, c io.Closer, limit int) *capture {
	p := &capture{buf: bufio.NewWriter(w), c: c, left: limit}
	p.w, p.err = wire.NewPcapWriter(p.buf)
	return p
}

// captureFromEnv opens the file for a test if captures are asked for.
func captureFromEnv(t testing.TB) *capture {
	dir := os.Getenv(PcapDirEnv)
	if dir == "" {
		return nil
	}
	clean := func(r rune) rune {
		if r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '_'
	}
	f, err := os.CreateTemp(dir, filepath.Base(strings.Map(clean, t.Name()))+"-*.pcap")
	if err != nil {
		t.Errorf("fabric: %s: %v", PcapDirEnv, err)
		return nil
	}
	c := newCapture(f, f, captureEnvLimit)
	c.only = true
	return c
}

// write adds a datagram.
func (p *capture) write(d *datagram) {
	if p == nil || p.err != nil || p.left < 0 || p.only && !d.device {
		return
	}
	p.left -= len(d.b)
	p.err = p.w.Write(time.Duration(time.Now().UnixNano()), &wire.Datagram{
		Src: d.from, Dst: d.to, TOS: d.tos, TTL: 64, DF: true, Payload: d.b,
	})
}

func (p *capture) close() error {
	if p == nil {
		return nil
	}
	if err := p.buf.Flush(); p.err == nil {
		p.err = err
	}
	if p.c != nil {
		if err := p.c.Close(); p.err == nil {
			p.err = err
		}
	}
	return p.err
}
