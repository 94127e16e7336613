package softroce_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// sleepers are the system calls in which foreign loops wait for a descriptor.
var sleepers = []string{"poll", "select", "epoll"}

func newSleeper(name string, fd int) (func() error, error) {
	switch name {
	case "poll":
		return func() error {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			return err
		}, nil
	case "select":
		return func() error {
			var set unix.FdSet
			set.Set(fd)
			_, err := unix.Select(fd+1, &set, nil, nil, nil)
			return err
		}, nil
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		return nil, err
	}
	ev := make([]unix.EpollEvent, 1)
	return func() error {
		_, err := unix.EpollWait(ep, ev, -1)
		return err
	}, nil
}

// foreignEnd waits for completions in a system call.
type foreignEnd struct {
	*verbsEnd
	ch    *verbs.CompChannel
	sleep func() error
}

func newForeignEnd(how string) (*foreignEnd, func(), error) {
	e, end, err := newVerbsEnd()
	if err != nil {
		return nil, nil, err
	}
	f := &foreignEnd{verbsEnd: e}
	if f.ch, err = e.cq.Channel(); err != nil {
		return nil, nil, err
	}
	fd, err := f.ch.FD()
	if err != nil {
		return nil, nil, err
	}
	if f.sleep, err = newSleeper(how, fd); err != nil {
		return nil, nil, err
	}
	return f, end, nil
}

// next is verbsEnd.next in a foreign loop: poll, arm, sleep, take the event.
func (f *foreignEnd) next() error {
	var dst [4]verbs.WC
	for {
		n, err := f.cq.Poll(dst[:])
		if err != nil {
			return err
		}
		recv := false
		for _, w := range dst[:n] {
			if err := w.Err(); err != nil {
				return err
			}
			recv = recv || w.Opcode.IsRecv()
		}
		if recv {
			return nil
		}
		if n > 0 {
			continue
		}
		if ready, err := f.cq.Arm(ib.NotifyAny); err != nil {
			return err
		} else if ready {
			continue
		}
		if err := f.sleep(); err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
		for {
			if _, more, err := f.ch.TryEvent(); err != nil {
				return err
			} else if !more {
				break
			}
		}
	}
}

// udpSocket is a socket that Go's poller knows nothing of.
type udpSocket struct {
	fd    int
	port  int
	sleep func() error
}

func newUDPSocket(how string) (*udpSocket, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return nil, err
	}
	a, err := unix.Getsockname(fd)
	if err != nil {
		return nil, err
	}
	u := &udpSocket{fd: fd, port: a.(*unix.SockaddrInet4).Port}
	u.sleep, err = newSleeper(how, fd)
	return u, err
}

func (u *udpSocket) send(port int) error {
	var b [64]byte
	return unix.Sendto(u.fd, b[:], 0, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
}

func (u *udpSocket) recv() (port int, err error) {
	var b [64]byte
	for {
		if err := u.sleep(); err != nil && !errors.Is(err, syscall.EINTR) {
			return 0, err
		}
		_, from, err := unix.Recvfrom(u.fd, b[:], 0)
		if errors.Is(err, syscall.EAGAIN) {
			continue
		}
		if err != nil {
			return 0, err
		}
		return from.(*unix.SockaddrInet4).Port, nil
	}
}

func init() {
	for _, how := range sleepers {
		softroce.PeerRoles["echo-"+how] = func(in *bufio.Reader) error {
			f, _, err := newForeignEnd(how)
			if err != nil {
				return err
			}
			if err := f.meet(os.Stdout, in); err != nil {
				return err
			}
			go func() {
				for f.next() == nil && f.recv() == nil && f.send() == nil {
				}
			}()
			fmt.Fprintln(os.Stdout, "ready")
			io.Copy(io.Discard, in)
			return nil
		}
		softroce.PeerRoles["udp-"+how] = func(in *bufio.Reader) error {
			u, err := newUDPSocket(how)
			if err != nil {
				return err
			}
			go func() {
				for {
					if port, err := u.recv(); err != nil || u.send(port) != nil {
						return
					}
				}
			}()
			fmt.Fprintln(os.Stdout, u.port)
			io.Copy(io.Discard, in)
			return nil
		}
	}
}

// BenchmarkForeignLoop is a ping-pong of 64 bytes between two processes that wait in
// poll, select or epoll, over the embedded device and over UDP in turn. Before each
// exchange the goroutine of the loop is woken by Go's poller, as one is that also
// serves other sockets.
func BenchmarkForeignLoop(b *testing.B) {
	for _, how := range sleepers {
		b.Run(how, func(b *testing.B) {
			f, end, err := newForeignEnd(how)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(end)
			in, out := softroce.StartPeer(b, "echo-"+how)
			if err := f.meet(in, out); err != nil {
				b.Fatal(err)
			}
			if _, err := out.ReadString('\n'); err != nil {
				b.Fatal(err)
			}
			u, err := newUDPSocket(how)
			if err != nil {
				b.Fatal(err)
			}
			_, out = softroce.StartPeer(b, "udp-"+how)
			line, err := out.ReadString('\n')
			if err != nil {
				b.Fatal(err)
			}
			port, err := strconv.Atoi(strings.TrimSpace(line))
			if err != nil {
				b.Fatal(err)
			}
			wake := wokenByPoller(b)
			var times [2][]time.Duration
			for b.Loop() {
				for i, ping := range []func() error{
					func() error {
						return errors.Join(f.send(), f.next(), f.recv())
					},
					func() error {
						if err := u.send(port); err != nil {
							return err
						}
						_, err := u.recv()
						return err
					},
				} {
					wake()
					start := time.Now()
					if err := ping(); err != nil {
						b.Fatal(err)
					}
					times[i] = append(times[i], time.Since(start))
				}
			}
			for i, name := range []string{"rdma", "udp"} {
				slices.Sort(times[i])
				for _, q := range []float64{0.5, 0.99, 0.999} {
					v := times[i][int(q*float64(len(times[i])-1))]
					b.ReportMetric(float64(v)/1e3, fmt.Sprintf("%s-p%g-µs", name, 100*q))
				}
			}
		})
	}
}

// wokenByPoller gives a function that sleeps in Go's poller and is woken by another
// goroutine.
func wokenByPoller(b *testing.B) func() {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	at := c.LocalAddr().(*net.UDPAddr).AddrPort()
	buf := make([]byte, 16)
	return func() {
		go c.WriteToUDPAddrPort(buf[:8], at)
		if _, _, err := c.ReadFromUDPAddrPort(buf[8:]); err != nil {
			b.Fatal(err)
		}
	}
}
