package softroce

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Some tests and benchmarks need a second process: the test binary again, which plays
// the role that peerEnv names, and tells on its standard output where it is.
const peerEnv = "SOFTROCE_TEST_PEER"

func TestMain(m *testing.M) {
	if role := os.Getenv(peerEnv); role != "" {
		if err := playPeer(role); err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// meeting is what the two processes tell each other.
type meeting struct {
	Addr   netip.Addr
	Port   uint16 // of UDP and TCP roles
	QPN    ib.QPN
	RKey   ib.RKey
	Base   uint64
	Buffer int
}

// peerProcess is the other process.
type peerProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader

	killed bool
}

func startPeer(b testing.TB, role string) *peerProcess {
	b.Helper()
	p := &peerProcess{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), peerEnv+"="+role)
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		p.in.Close() // the peer ends when it reads the end
		if err := p.cmd.Wait(); err != nil && !p.killed {
			b.Error("peer:", err)
		}
	})
	return p
}

func (p *peerProcess) tell(m meeting) error { return tell(p.in, m) }

func (p *peerProcess) hear() (m meeting, err error) { return hear(p.out) }

func tell(w io.Writer, m meeting) error {
	b, err := json.Marshal(m)
	if err == nil {
		_, err = w.Write(append(b, '\n'))
	}
	return err
}

func hear(r *bufio.Reader) (m meeting, err error) {
	line, err := r.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &m)
	}
	return m, err
}

// playPeer is the life of the second process.
func playPeer(role string) error {
	in := bufio.NewReader(os.Stdin)
	switch role {
	case "empty":
		tell(os.Stdout, meeting{})
	case "udp":
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			return err
		}
		tell(os.Stdout, meeting{Port: c.LocalAddr().(*net.UDPAddr).AddrPort().Port()})
		go echoUDP(c)
	case "tcp":
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		tell(os.Stdout, meeting{Port: l.Addr().(*net.TCPAddr).AddrPort().Port()})
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go serveTCP(c)
			}
		}()
	case "echo", "spin", "sink", "idle":
		p, err := New(nil)
		if err != nil {
			return err
		}
		defer p.Close()
		e, err := newEnd(p, 1<<20, 128)
		if err != nil {
			return err
		}
		tell(os.Stdout, e.meeting())
		m, err := hear(in)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := e.join(m); err != nil {
			return err
		}
		for range 64 {
			if err := e.recv(); err != nil {
				return err
			}
		}
		tell(os.Stdout, meeting{})
		if role == "echo" || role == "spin" {
			e.spin = role == "spin"
			go func() {
				if err := e.echo(); err != nil {
					fmt.Fprintln(os.Stderr, "echo:", err)
				}
			}()
		}
	default:
		f := PeerRoles[role]
		if f == nil {
			return fmt.Errorf("no role %q", role)
		}
		return f(in)
	}
	io.Copy(io.Discard, in)
	return nil
}

func echoUDP(c *net.UDPConn) {
	b := make([]byte, 2048)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		if _, err := c.WriteToUDPAddrPort(b[:n], from); err != nil {
			return
		}
	}
}

// serveTCP answers each byte-counted block with one byte: the first 8 bytes say how
// long it is, as net.Conn has no messages.
func serveTCP(c net.Conn) {
	defer c.Close()
	b := make([]byte, 1<<20)
	for {
		if _, err := io.ReadFull(c, b[:1]); err != nil {
			return
		}
		if b[0] == 0 { // a bulk block
			if _, err := io.ReadFull(c, b[:1<<20-1]); err != nil {
				return
			}
			continue
		}
		if _, err := io.ReadFull(c, b[1:64]); err != nil {
			return
		}
		if _, err := c.Write(b[:64]); err != nil {
			return
		}
	}
}

// end is one end of a connection between two processes, at the driver's level.
type end struct {
	p    *Provider
	ctx  driver.Context
	pd   driver.PD
	ch   *compChannel
	cq   *cq
	qp   *qp
	mem  []byte
	lkey ib.LKey
	rkey ib.RKey
	addr netip.Addr
	wcs  []driver.WC
	spin bool // next polls and never sleeps
}

const endBase = 1 << 20

func newEnd(p *Provider, size, depth int) (*end, error) {
	e := &end{p: p, mem: make([]byte, size)}
	var err error
	if len(p.cfg.Addrs) > 0 {
		e.addr = p.cfg.Addrs[0]
	} else if e.addr, err = p.dev.loopback(); err != nil {
		return nil, err
	}
	if e.ctx, err = p.OpenDevice(""); err != nil {
		return nil, err
	}
	if e.pd, err = e.ctx.AllocPD(); err != nil {
		return nil, err
	}
	ch, err := e.ctx.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	e.ch = ch.(*compChannel)
	c, err := e.ctx.CreateCQ(driver.CQConfig{Entries: 2 * depth, Channel: ch})
	if err != nil {
		return nil, err
	}
	e.cq = c.(*cq)
	mr, err := e.pd.RegMR(e.mem, endBase, allAccess)
	if err != nil {
		return nil, err
	}
	e.lkey, e.rkey = mr.Keys()
	q, err := e.pd.CreateQP(driver.QPConfig{
		Type: ib.RC, SendCQ: c, RecvCQ: c,
		Cap: driver.Caps{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
	})
	if err != nil {
		return nil, err
	}
	e.qp = q.(*qp)
	return e, nil
}

func (e *end) meeting() meeting {
	ep, _ := e.p.dev.endpoint(e.addr)
	buffer := 0
	if ep != nil {
		buffer = ep.limit.RecvBuffer
	}
	return meeting{Addr: e.addr, QPN: e.qp.num, RKey: e.rkey, Base: endBase, Buffer: buffer}
}

func (e *end) join(m meeting) error {
	if m.Buffer > 0 {
		e.p.dev.setPeerBuffer(m.Addr, m.Buffer)
	}
	s := &side{ctx: e.ctx.(*deviceContext), addr: e.addr}
	p := path{mtu: ib.MTU4096}
	if err := s.toRTR(e.qp, m.Addr, m.QPN, p); err != nil {
		return err
	}
	return s.toRTS(e.qp, p)
}

func (e *end) sge(off, n int) driver.SGE {
	return driver.SGE{Addr: endBase + uint64(off), Len: uint32(n), LKey: e.lkey}
}

func (e *end) recv() error {
	w := &e.qp.RecvSlots()[0]
	w.SGL = append(w.SGL[:0], e.sge(0, 64))
	_, err := e.qp.CommitRecv(1)
	return err
}

func (e *end) send(n int, f ib.SendFlags) error {
	w := &e.qp.SendSlots()[0]
	w.Opcode, w.Flags = ib.OpSend, f
	w.SGL = append(w.SGL[:0], e.sge(0, n))
	_, err := e.qp.CommitSend(1)
	return err
}

func (e *end) write(m *meeting, n int, f ib.SendFlags) error {
	w := &e.qp.SendSlots()[0]
	w.Opcode, w.Flags, w.Addr, w.RKey = ib.OpWrite, f, m.Base, m.RKey
	w.SGL = append(w.SGL[:0], e.sge(0, n))
	_, err := e.qp.CommitSend(1)
	return err
}

// next waits for a completion without spinning.
func (e *end) next() (*driver.WC, error) {
	for {
		if len(e.wcs) > 0 {
			w := &e.wcs[0]
			e.wcs = e.wcs[1:]
			if w.Status != ib.StatusSuccess {
				return w, w.Status.Err()
			}
			return w, nil
		}
		var err error
		if e.wcs, err = e.cq.Poll(); err != nil {
			return nil, err
		}
		if len(e.wcs) > 0 || e.spin {
			continue
		}
		if err := e.cq.Arm(false); err != nil {
			return nil, err
		}
		if e.wcs, err = e.cq.Poll(); err != nil {
			return nil, err
		}
		if len(e.wcs) > 0 {
			continue
		}
		if err := e.ch.Wait(context.Background()); err != nil {
			return nil, err
		}
		for {
			if _, ok, err := e.ch.Next(); err != nil {
				return nil, err
			} else if !ok {
				break
			}
		}
	}
}

// echo sends everything back. Every 32nd request is signaled, as the queue needs it.
func (e *end) echo() error {
	for i := 0; ; i++ {
		w, err := e.next()
		if err != nil {
			return err
		}
		if !w.Opcode.IsRecv() {
			continue
		}
		if err := e.recv(); err != nil {
			return err
		}
		f := ib.SendFlags(0)
		if i%32 == 0 {
			f = ib.Signaled
		}
		if err := e.send(64, f); err != nil {
			return err
		}
	}
}

// connectPeer starts a peer of a role and connects an end to it.
func connectPeer(b testing.TB, role string) (*end, *meeting) {
	b.Helper()
	p := newProvider(b, nil)
	e, err := newEnd(p, 1<<20, 128)
	if err != nil {
		b.Fatal(err)
	}
	peer := startPeer(b, role)
	m, err := peer.hear()
	if err != nil {
		b.Fatal(err)
	}
	if err := e.join(m); err != nil {
		b.Fatal(err)
	}
	if err := peer.tell(e.meeting()); err != nil {
		b.Fatal(err)
	}
	if _, err := peer.hear(); err != nil {
		b.Fatal(err)
	}
	return e, &m
}
