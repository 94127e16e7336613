package rdma_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestC315_Containers: what a container has is enough for the embedded device, or it is said
// what is missing. Each container is a network of its own, without a device of the kernel's
// and without IPv4, that goes with its process.
func TestC315_Containers(t *testing.T) {
	rdmatest.CheckLeaks(t)
	provider := "" // the default
	if devices, _ := os.ReadDir("/sys/class/infiniband"); len(devices) > 0 {
		provider = "soft" // this host has some, and shows them to containers
	}
	t.Setenv(rdma.EnvProvider, provider)
	for _, service := range []string{"container pair", "container alone", "container cut off"} {
		t.Run(service, func(t *testing.T) {
			if err := contained("ip", "link").Run(); err != nil {
				if os.Getenv("CI") == "true" && os.Getuid() == 0 {
					t.Fatalf("CI runs this test: %v", err)
				}
				t.Skipf("no network namespaces, or no ip(8), here: %v", err)
			}
			p := startPeerBy(t, contained(os.Args[0]), peerRole{Service: service})
			if p.address != "fine" {
				t.Error(p.address)
			}
		})
	}
}

// contained is a command in a network namespace of its own.
func contained(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	}
	return cmd
}

func init() {
	for service, f := range map[string]func() error{
		"container pair":    containerPair,
		"container alone":   containerAlone,
		"container cut off": containerCutOff,
	} {
		peerAlone[service] = func() error {
			if err := f(); err != nil {
				fmt.Printf("%q\n", err)
				return nil
			}
			fmt.Println("fine")
			return nil
		}
	}
	peerAlone["container server"] = containerServer
}

// ips runs ip(8) with each line.
func ips(lines ...string) error {
	for _, l := range lines {
		if out, err := exec.Command("ip", strings.Fields(l)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", l, err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// The hosts of a pair: their link has the least MTU that IPv6 allows.
const (
	containerHost = "fd00:315::1"
	containerPeer = "fd00:315::2"
)

func containerUp(addr string) error {
	return ips("addr add "+addr+"/64 dev eth0 nodad", "link set eth0 up")
}

// containerPair connects two containers.
func containerPair() error {
	role, _ := json.Marshal(peerRole{Service: "container server"})
	server := contained(os.Args[0])
	server.Env = append(os.Environ(), peerEnv+"="+string(role))
	server.Stderr = os.Stderr
	in, err := server.StdinPipe()
	if err != nil {
		return err
	}
	out, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	defer server.Wait()
	defer in.Close()
	err = ips(fmt.Sprintf("link add eth0 mtu 1280 type veth peer name eth0 mtu 1280 netns %d", server.Process.Pid))
	if err != nil {
		return err
	}
	if err := containerUp(containerHost); err != nil {
		return err
	}
	fmt.Fprintln(in, "there is a link")
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the server: %w", err)
	}
	return containerEcho(strings.TrimSpace(address), ib.MTU1024)
}

// containerServer is the other container of containerPair.
func containerServer() error {
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	if err := containerUp(containerPeer); err != nil {
		return err
	}
	ln, err := rdma.Listen("rdma6", net.JoinHostPort(containerPeer, "0"))
	if err != nil {
		return err
	}
	go serveAll(ln)
	fmt.Println(ln.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func serveAll(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go servePeer(c, "echo")
	}
}

// containerEcho has some data come back, over packets of that size.
func containerEcho(address string, mtu ib.MTU) error {
	p, why, err := rdma.Provider(rdma.Auto)
	if err != nil {
		return err
	}
	if p.Name() != "soft" || why == "" {
		return fmt.Errorf("provider %s, as %q", p.Name(), why)
	}
	c, err := (&rdma.Dialer{Timeout: 30 * time.Second}).Dial("rdma6", address)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	want := pattern(1<<20, 315)
	go c.Write(want)
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		return fmt.Errorf("%d bytes came back, %v", n, err)
	}
	dev, err := verbs.Open(p, "")
	if err != nil {
		return err
	}
	port, err := dev.Port(1)
	if err != nil {
		return err
	}
	if port.ActiveMTU != mtu {
		return fmt.Errorf("the MTU is %v, want %v", port.ActiveMTU, mtu)
	}
	return nil
}

// containerAlone has nothing but ::1.
func containerAlone() error {
	if err := ips("link set lo up", "addr del 127.0.0.1/8 dev lo"); err != nil {
		return err
	}
	ln, err := rdma.Listen("rdma", "[::1]:0")
	if err != nil {
		return err
	}
	defer ln.Close()
	go serveAll(ln)
	return containerEcho(ln.Addr().String(), ib.MTU4096)
}

// containerCutOff has no address at all: what needs one says which. A listener on all addresses
// can wait for one.
func containerCutOff() error {
	ln, err := rdma.Listen("rdma", ":0")
	if err != nil {
		return err
	}
	defer ln.Close()
	for what, f := range map[string]func(at string) error{
		"listen": func(at string) error { _, err := rdma.Listen("rdma", at); return err },
		"dial":   func(at string) error { _, err := rdma.Dial("rdma", at); return err },
	} {
		for _, host := range []string{containerPeer, "192.0.2.1"} {
			at := net.JoinHostPort(host, "7471")
			err := f(at)
			if !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.ENETUNREACH) || !strings.Contains(err.Error(), at) {
				return fmt.Errorf("%s at %s: %w", what, at, err)
			}
		}
	}
	return nil
}
