package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// With no address both ends run on this machine, as two processes: one process could
// take short cuts. The second is this program again, as a server that tells its address
// on its standard output and ends when its standard input does, so also when its parent
// is killed.

// pairEnv in the environment makes a server the second process of a pair.
const pairEnv = "VERBENA_PING_PAIR"

// goodbye is how long the second process may take to end.
const goodbye = 3 * time.Second

func runPair(ctx context.Context, e *env, o *pingOptions) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"ping", "-listen", "loopback", "-wait", o.wait, "-timeout", o.timeout.String()}
	if o.verbose {
		args = append(args, "-v")
	}
	if !o.tcp {
		args = append(args, "-tcp=false")
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), pairEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	var rest sync.WaitGroup
	// end lets the server end and says what it has to say about it.
	end := func() error {
		in.Close()
		late := time.AfterFunc(goodbye, func() { cmd.Process.Kill() })
		defer late.Stop()
		rest.Wait()
		err := cmd.Wait()
		if text := strings.TrimSpace(complaint.String()); text != "" {
			err = errors.New(strings.TrimPrefix(text, "verbena ping: "))
		}
		if err != nil {
			return fmt.Errorf("the server process: %w", err)
		}
		return nil
	}
	first, err := lines.ReadString('\n')
	if err != nil {
		return errors.Join(end(), ignoreEOF(err))
	}
	addr, err := netip.ParseAddrPort(strings.TrimSpace(first))
	if err != nil {
		return errors.Join(end(), err)
	}
	p := o.printer(e)
	rest.Go(func() { // what the server shows goes beside what the client shows
		s := bufio.NewScanner(lines)
		for s.Scan() {
			if o.verbose {
				p.linef("server: %s", s.Text())
			}
		}
	})
	return errors.Join(runClient(ctx, o, addr, p), end())
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// servePair is the second process. Interrupts are for the first.
func servePair(ctx context.Context, e *env, o *pingOptions) error {
	signal.Ignore(os.Interrupt)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		io.Copy(io.Discard, e.stdin)
		cancel()
	}()
	prov, _, err := provider()
	if err != nil {
		return err
	}
	for _, at := range pairAddrs(prov) {
		s := &server{o: o, e: e, p: newPrinter(e.stdout, o.verbose, true), sessions: map[*session]bool{}}
		ready := false
		err = s.run(ctx, netip.AddrPortFrom(at, 0), func(string) {
			ready = true
			s.p.linef("%v", s.ln.LocalAddr())
		})
		if ready || ctx.Err() != nil {
			break
		}
	}
	return err
}

// pairAddrs gives addresses to try. 127.0.0.1 may be held by another program, so that
// private ones follow; kernel devices know no loopback, and have their own.
func pairAddrs(p verbs.Provider) []netip.Addr {
	addrs := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	for range 4 {
		v := rand.Uint32()
		addrs = append(addrs, netip.AddrFrom4([4]byte{127, byte(192 + v>>26), byte(v >> 8), byte(v)}))
	}
	devices, err := verbs.Devices(p)
	if err != nil {
		return addrs
	}
	for _, info := range devices {
		d, err := info.Open()
		if err != nil {
			continue
		}
		gids, err := d.GIDs()
		if err != nil {
			continue
		}
		for _, g := range gids {
			if a := g.GID.Addr(); !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsUnspecified() {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs
}
