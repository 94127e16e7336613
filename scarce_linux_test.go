package rdma_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestC312_Descriptors: a process that runs out of descriptors is told so by what needs one,
// what it has goes on, and afterwards everything can be had, and nothing is left. (It is a
// process of its own, as its limit is everybody's.)
func TestC312_Descriptors(t *testing.T) {
	p := startPeer(t, peerRole{Network: "rdma", Service: "starved"})
	if p.address != "fine" {
		t.Error(p.address)
	}
}

func init() {
	peerAlone["starved"] = func() error {
		err := starved()
		if err == nil {
			fmt.Println("fine")
			return nil
		}
		fmt.Printf("%q\n", err)
		return nil
	}
}

// starved is that process.
func starved() error {
	cfg, err := configAs("rdma", "")
	if err != nil {
		return err
	}
	refused := make(chan error, 16)
	cfg.Trace = &rdma.Trace{Refused: func(_ netip.AddrPort, err error) { refused <- err }}
	lc, d := rdma.ListenConfig{Config: cfg}, rdma.Dialer{Config: cfg, Timeout: 30 * time.Second}
	ours := ownLoopback() // the embedded device keeps the sockets of addresses that were used
	listen := func(host string) (*rdma.Listener, error) {
		ln, err := lc.Listen(bg, "rdma", host+":0")
		if err != nil {
			return nil, err
		}
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go servePeer(c, "echo")
			}
		}()
		return ln.(*rdma.Listener), nil
	}
	dial := func(ln net.Listener) (*rdma.Conn, error) {
		c, err := d.Dial("rdma", ln.Addr().String())
		if err != nil {
			return nil, err
		}
		return c.(*rdma.Conn), echo(c)
	}
	life := func() error { // all that takes descriptors, once
		ln, err := listen(ours)
		if err != nil {
			return err
		}
		defer ln.Close()
		c, err := dial(ln)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.FD()
		return err
	}
	if err := life(); err != nil {
		return err
	}
	before := descriptors()

	ln, err := listen(ours)
	if err != nil {
		return err
	}
	c, err := dial(ln)
	if err != nil {
		return err
	}
	var few, was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return err
	}
	few = was
	few.Cur = 1 // 0 is open
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		return err
	}
	for what, f := range map[string]func() error{
		"open a file":          func() error { _, err := os.Open(os.DevNull); return err },
		"listen":               func() error { _, err := listen(ownLoopback()); return err },
		"descriptor of a conn": func() error { _, err := c.FD(); return err },
		"of a listener":        func() error { _, err := ln.FD(); return err },
	} {
		if err := f(); !errors.Is(err, syscall.EMFILE) {
			return fmt.Errorf("%s: %v, want EMFILE", what, err)
		}
	}
	if err := echo(c); err != nil {
		return fmt.Errorf("a connection without descriptors: %w", err)
	}
	// Another may need one, to look at the interfaces of the host: on the side of the dialer, or
	// of the listener, which then refuses it.
	other, err := dial(ln)
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = <-refused
	}
	switch {
	case err == nil:
		if err = other.Close(); err != nil {
			return fmt.Errorf("close another: %w", err)
		}
	case !errors.Is(err, syscall.EMFILE):
		return fmt.Errorf("another: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return err
	}
	if err := echo(c); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	if _, err := c.FD(); err != nil {
		return err
	}
	if err := errors.Join(c.Close(), ln.Close(), life()); err != nil {
		return err
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left := append(verbs.Objects(), cm.Objects()...)
		if now := descriptors(); now <= before && len(left) == 0 {
			return nil
		} else if time.Now().After(end) {
			return fmt.Errorf("%d descriptors, and at first %d; objects %q", now, before, left)
		}
	}
}

func echo(c net.Conn) error {
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 5))
	return err
}

func descriptors() int {
	l, _ := os.ReadDir("/proc/self/fd")
	return len(l)
}
