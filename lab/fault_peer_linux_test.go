package lab_test

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// kernelEnv makes a process use the kernel's devices.
const kernelEnv = "VERBENA_PROVIDER=kernel"

// TestGuestFaultPeerKilled: a peer that is killed is noticed within a second or so, idle
// or not, on either side, and leaves nothing behind. The kernel says goodbye for it.
func TestGuestFaultPeerKilled(t *testing.T) {
	faultNet(t)
	const limit = 10 * time.Second // an emulated machine is slow
	const cycles = 8
	for _, idle := range []bool{false, true} {
		name := map[bool]string{false: "Traffic", true: "Idle"}[idle]
		t.Run("Passive"+name, func(t *testing.T) {
			server := faultStart(t, "server", faultOrders{Serve: faultHere + ":7001"}, kernelEnv)
			server.expect(limit, "ready ")
			var first, last faultUse
			for i := range cycles {
				client := faultStart(t, "client", faultOrders{Dial: faultHere + ":7001", Idle: idle, Cycles: 1}, kernelEnv)
				client.expect(limit, "connected")
				client.kill()
				faultPeerGone(t, server.expect(limit, "ended "))
				if last = server.used(limit); i == 1 {
					first = last
				}
			}
			server.grown(first, last)
		})
		t.Run("Active"+name, func(t *testing.T) {
			serve := func() *faultProcess {
				s := faultStart(t, "server", faultOrders{Serve: faultHere + ":7002"}, kernelEnv)
				s.expect(limit, "ready ")
				return s
			}
			server := serve()
			// The first connection of the next cycle may find nobody.
			client := faultStart(t, "client", faultOrders{Dial: faultHere + ":7002", Idle: idle, Cycles: 60}, kernelEnv)
			var first, last faultUse
			for i := range cycles {
				client.expect(limit, "connected")
				server.kill()
				server.wait()
				faultPeerGone(t, client.expect(limit, "ended "))
				if last = client.used(limit); i == 1 {
					first = last
				}
				server = serve()
			}
			client.grown(first, last)
		})
	}
}

// faultPeerGone checks how a connection ended whose peer has died: the kernel's goodbye
// was faster, or the silence of its queue pair.
func faultPeerGone(t *testing.T, end string) {
	t.Helper()
	for _, class := range []string{"EOF: ", "RETRY_EXC_ERR: ", "REM_OP_ERR: ", "REM_INV_REQ_ERR: "} {
		if strings.HasPrefix(end, class) {
			return
		}
	}
	t.Errorf("the connection ended with %s", end)
}

// faultSoft starts a process with the embedded device on the other host of the network.
func faultSoft(t *testing.T, name string, o faultOrders) *faultProcess {
	t.Helper()
	return faultStart(t, name, o, "VERBENA_PROVIDER=soft", "ip", "netns", "exec", faultNS)
}

// TestGuestFaultC134_C221_PeerFrozen: a host that stands still is noticed by the retries of the
// transport, within the time that they may take; and nobody can connect to it.
func TestGuestFaultC134_C221_PeerFrozen(t *testing.T) {
	faultNet(t)
	freeze := func(p *faultProcess) {
		t.Helper()
		if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	// 4.096 µs × 2^15 is the next time above 100 ms. A device may take up to four times
	// as long (IBTA Vol 1 §9.7.6.1.3); four tries, and the machine is slow.
	const ackTimeout, retries = 100 * time.Millisecond, 3
	const bound = 4*(retries+1)*135*time.Millisecond + 10*time.Second

	server := faultSoft(t, "server", faultOrders{Serve: faultThere + ":7006"})
	server.expect(faultLimit, "ready ")
	client := faultStart(t, "client", faultOrders{Dial: faultThere + ":7006", Cycles: 1, Timeout: ackTimeout, Retries: retries}, kernelEnv)
	client.expect(faultLimit, "connected")
	freeze(server)
	if end := client.expect(bound, "ended "); !strings.HasPrefix(end, "RETRY_EXC_ERR: ") {
		t.Errorf("the connection ended with %s", end)
	}
	client.used(faultLimit)

	t.Run("Connect", func(t *testing.T) {
		late := faultStart(t, "late", faultOrders{Dial: faultThere + ":7006", Cycles: 1, Limit: 3 * time.Second}, kernelEnv)
		if end := late.expect(faultLimit, "ended "); !strings.HasPrefix(end, "deadline: ") {
			t.Errorf("a connection with a limit ended with %s", end)
		}
		late.used(faultLimit)
		// Without one the kernel gives up after 16 tries: 102 s were measured.
		long := faultStart(t, "long", faultOrders{Dial: faultThere + ":7006", Cycles: 1, Limit: time.Hour}, kernelEnv)
		if end := long.expect(200*time.Second, "ended "); !strings.HasPrefix(end, "ETIMEDOUT: ") {
			t.Errorf("a connection without limit ended with %s", end)
		}
	})
}
