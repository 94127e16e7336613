package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/verbs"
)

var pingCommand = &command{
	name:  "ping",
	args:  "[-flags] [ADDR | -listen ADDR]",
	short: "exchange data with a peer over RDMA and over TCP, and say how long it takes",
	run:   runPing,
}

const pingText = `
Ping speaks the protocol of rdma-core's rping: in each exchange the client names a
buffer, the server reads it (RDMA READ), the client names another, the server writes
what it read there (RDMA WRITE), and the client compares. The time of an exchange is
that of all of it, three round trips. The same exchange runs over TCP on the same path,
turn by turn with the other, if the peer offers it on the TCP port of the same number.

  verbena ping                 both ends on this machine, as two processes
  verbena ping -listen ADDR    serve any number of clients, rping among them
  verbena ping ADDR            ping a server: verbena ping -listen, or rping -s

ADDR is an address or name with or without port (7174 if there is none); -listen :7174
takes all addresses. The peer rping must be started with the same size (-S).`

// pingOptions are the flags of ping, checked.
type pingOptions struct {
	count    int // 0: until stopped
	size     int
	interval time.Duration
	timeout  time.Duration
	wait     string
	verbose  bool
	quiet    bool
	tcp      bool
}

func runPing(ctx context.Context, e *env, args []string) error {
	var o pingOptions
	fs := e.flags()
	listen := fs.String("listen", "", "serve clients on `ADDR` until stopped")
	fs.IntVar(&o.count, "n", 10, "stop after `COUNT` exchanges; 0: when interrupted")
	fs.IntVar(&o.size, "size", rpingSize, fmt.Sprintf("`BYTES` of data in an exchange, %d to %d; with -listen the most that is accepted (%d unless given)", rpingMin, rpingMax, rpingMax))
	fs.DurationVar(&o.interval, "interval", 100*time.Millisecond, "time from one exchange to the next; 0: as fast as it can")
	fs.DurationVar(&o.timeout, "timeout", 5*time.Second, "give up when a step takes longer; with -listen, find out whether a client still lives when it has been silent that long")
	fs.StringVar(&o.wait, "wait", "block", "`HOW` to wait: block (goroutines), poll (poll(2)), epoll, spin")
	fs.BoolVar(&o.verbose, "v", false, "show every event of the connection manager, completion and asynchronous event")
	fs.BoolVar(&o.quiet, "q", false, "show the summary only")
	fs.BoolVar(&o.tcp, "tcp", true, "exchange the same over TCP")
	if err := e.parse(fs, args, pingText); err != nil {
		return err
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if given["listen"] && !given["size"] {
		o.size = rpingMax
	}
	if err := o.check(); err != nil {
		return err
	}
	switch {
	case given["listen"] && fs.NArg() > 0:
		return &usageError{text: "-listen and an address to ping exclude each other"}
	case fs.NArg() > 1:
		return &usageError{text: fmt.Sprintf("one address, not %d: %s", fs.NArg(), strings.Join(fs.Args(), " "))}
	case given["listen"] && os.Getenv(pairEnv) != "":
		return servePair(ctx, e, &o)
	case given["listen"]:
		addr, err := resolve(ctx, *listen, true)
		if err != nil {
			return err
		}
		return runServer(ctx, e, &o, addr)
	case fs.NArg() == 1:
		addr, err := resolve(ctx, fs.Arg(0), false)
		if err != nil {
			return err
		}
		return runClient(ctx, &o, addr, o.printer(e))
	}
	return runPair(ctx, e, &o)
}

func (o *pingOptions) check() error {
	switch {
	case o.count < 0:
		return &usageError{text: "-n is negative"}
	case o.size < rpingMin || o.size > rpingMax:
		return &usageError{text: fmt.Sprintf("-size %d: from %d to %d bytes", o.size, rpingMin, rpingMax)}
	case o.interval < 0:
		return &usageError{text: "-interval is negative"}
	case o.timeout <= 0:
		return &usageError{text: "-timeout must be more than 0"}
	}
	return checkWaitMode(o.wait)
}

// printer makes the printer of a client. One that pings as fast as it can is not slowed
// down by writing.
func (o *pingOptions) printer(e *env) *printer {
	return newPrinter(e.stdout, o.verbose, o.interval > 0 || o.verbose)
}

// resolve finds the address that a user means: host, host:port, address, [address]:port.
// Without host, to listen, it is every address.
func resolve(ctx context.Context, s string, listen bool) (netip.AddrPort, error) {
	bad := func(why string) error { return &usageError{text: fmt.Sprintf("%q: %s", s, why)} }
	host, port := s, strconv.Itoa(rpingPort)
	if ip, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		host = ip.String()
	} else if strings.Contains(s, ":") {
		if host, port, err = net.SplitHostPort(s); err != nil {
			return netip.AddrPort{}, bad("no address")
		}
	}
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil || p == 0 && !listen {
		return netip.AddrPort{}, bad("no port number")
	}
	if host == "" {
		if !listen {
			return netip.AddrPort{}, bad("no host")
		}
		return netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(p)), nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return netip.AddrPortFrom(ip.Unmap(), uint16(p)), nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(ips[0].Unmap(), uint16(p)), nil
}

// provider gives the provider of devices and says which one it is.
func provider() (p verbs.Provider, what string, err error) {
	p, why, err := rdma.Provider(rdma.Auto)
	if err != nil {
		return nil, "", err
	}
	return p, fmt.Sprintf("%s: %s", p.Name(), why), nil
}

// errInterrupted ends a client that was stopped before its first answer.
var errInterrupted = errors.New("stopped before the first answer")

// why puts the reason of an end in words. limit is how long a step may take.
func why(err error, limit time.Duration) string {
	switch {
	case errors.Is(err, io.EOF):
		return "the peer ended the connection"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer within %v", limit)
	}
	return err.Error()
}
