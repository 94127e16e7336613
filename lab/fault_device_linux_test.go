package lab_test

import (
	"context"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
)

const faultLimit = 15 * time.Second // for what takes a second: an emulated machine is slow

// TestGuestFaultC191_C230_Removal: rdma link del ends connections, listeners, readers of
// asynchronous events and those who wait for completions, with ErrDeviceGone. It
// returns when all is closed, though the process lives on, and the process finds the
// device that is made after it.
//
// This kernel's driver cannot take a device from its users: asynchronous events and
// completion channels never tell. The library does, as the connection manager knows.
func TestGuestFaultC191_C230_Removal(t *testing.T) {
	for _, idle := range []bool{false, true} {
		t.Run(map[bool]string{false: "Traffic", true: "Idle"}[idle], func(t *testing.T) {
			faultNet(t)
			server := faultStart(t, "server", faultOrders{Serve: faultHere + ":7003", Events: true, Cycles: 1}, kernelEnv)
			server.expect(faultLimit, "ready ")
			client := faultStart(t, "client", faultOrders{Dial: faultHere + ":7003", Idle: idle, Cycles: 2, Events: true, Bystand: true, Reopen: true}, kernelEnv)
			client.expect(faultLimit, "connected")
			del := exec.Command("timeout", "60", "rdma", "link", "del", faultRXE)
			if err := del.Start(); err != nil {
				t.Fatal(err)
			}
			for _, p := range []*faultProcess{server, client} {
				said := p.until(faultLimit, "used ")
				// The server's peer may have said goodbye before the server was told, and it closes its
				// device then; its listener is told in any case, below.
				left := p == server && strings.Contains(said, "ended EOF: ")
				for _, want := range []string{"async DEVICE_FATAL", "async gone", "ended gone: "} {
					if !strings.Contains(said, want) && !left {
						t.Errorf("%s: no %q", p.name, want)
					}
				}
				if p == client && !strings.Contains(said, "bystander gone: ") {
					t.Errorf("who waited without a connection was not told")
				}
				if strings.Contains(said, "fault: close ") {
					t.Errorf("%s: an object could not be closed", p.name)
				}
			}
			server.expect(faultLimit, "ended gone: ") // its listener
			if err := del.Wait(); err != nil {
				t.Fatalf("rdma link del: %v", err)
			}
			select {
			case <-client.ended:
				t.Fatal("the client has ended, so this shows nothing")
			default:
			}
			sh(t, "timeout 60 rdma link add "+faultRXE+" type rxe netdev fault0")
			client.expect(faultLimit, "again")
		})
	}
}

// TestGuestFaultC191_Removals: a process that sees its device removed and made again, many
// times, keeps nothing of the old ones.
func TestGuestFaultC191_Removals(t *testing.T) {
	faultNet(t)
	const cycles = 6
	p := faultStart(t, "process", faultOrders{Self: faultHere + ":7004", Cycles: cycles, Events: true}, kernelEnv)
	var first, last faultUse
	for i := range cycles {
		p.expect(4*faultLimit, "connected")
		sh(t, "timeout 60 rdma link del "+faultRXE+" && timeout 60 rdma link add "+faultRXE+" type rxe netdev fault0")
		if last = p.used(faultLimit); i == 1 {
			first = last
		}
	}
	p.grown(first, last)
}

// TestGuestFaultC191_Unused: librdmacm keeps a device open that a process has used, also when
// all is closed, so its removal waits for the end of the process; unless the process keeps an id
// on the device, which hears of the removal.
func TestGuestFaultC191_Unused(t *testing.T) {
	for _, watch := range []bool{false, true} {
		t.Run(map[bool]string{false: "Nothing", true: "Watch"}[watch], func(t *testing.T) {
			faultNet(t)
			p := faultStart(t, "process", faultOrders{Idler: faultHere + ":7013", Watch: watch}, kernelEnv)
			p.expect(2*faultLimit, "idle")
			del := exec.Command("timeout", "60", "rdma", "link", "del", faultRXE)
			if err := del.Start(); err != nil {
				t.Fatal(err)
			}
			through := make(chan error, 1)
			go func() { through <- del.Wait() }()
			if !watch {
				select {
				case err := <-through:
					t.Errorf("rdma link del returned (%v) while a process had used the device: if nothing holds it any more, say so in docs/kernel-devices.md", err)
				case <-time.After(2 * time.Second):
				}
				p.kill()
			}
			if err := <-through; err != nil {
				t.Errorf("rdma link del: %v", err)
			}
			select {
			case <-p.ended:
				if watch {
					t.Error("the process has ended, so this shows nothing")
				}
			default:
			}
		})
	}
}

// idler uses the device, closes everything, and lives on.
func (r *faultRun) idler(ctx context.Context) error {
	if err := r.once(ctx, r.o.Idler); err != nil {
		return err
	}
	if r.o.Watch {
		id, err := cm.NewID(r.p, ib.PortSpaceTCP)
		if err != nil {
			return err
		}
		defer id.Close()
		if err := id.Bind(netip.AddrPortFrom(netip.MustParseAddr(faultHere), 0)); err != nil {
			return err
		}
	}
	r.say("idle")
	<-ctx.Done()
	return nil
}

// TestGuestFaultC012_Link: the port's events come when the link goes down and up. This kernel
// fails the request that finds no route at once (LOC_QP_OP_ERR); a device that retries would
// give RETRY_EXC_ERR. Afterwards the same processes connect again.
func TestGuestFaultC012_Link(t *testing.T) {
	faultNet(t)
	server := faultStart(t, "server", faultOrders{Serve: faultHere + ":7005", Events: true, Timeout: 67 * time.Millisecond, Retries: 3}, kernelEnv)
	server.expect(faultLimit, "ready ")
	client := faultStart(t, "client", faultOrders{Dial: faultHere + ":7005", Cycles: 2, Events: true, Reopen: true, Timeout: 67 * time.Millisecond, Retries: 3}, kernelEnv)
	client.expect(faultLimit, "connected")
	sh(t, "ip link set fault0 down")
	said := client.until(faultLimit, "used ")
	if !strings.Contains(said, "ended LOC_QP_OP_ERR: ") && !strings.Contains(said, "ended RETRY_EXC_ERR: ") {
		t.Error("the connection did not end as it should")
	}
	if !strings.Contains(said, "async PORT_ERR 1 DOWN") {
		client.expect(faultLimit, "async PORT_ERR 1 DOWN")
	}
	server.expect(faultLimit, "async PORT_ERR 1 DOWN")
	sh(t, "ip link set fault0 up")
	client.expect(faultLimit, "async PORT_ACTIVE 1 ACTIVE")
	server.expect(faultLimit, "async PORT_ACTIVE 1 ACTIVE")
}

// TestGuestFaultC230_Wildcard: a listener on all addresses outlives a device, and serves on the one
// that comes after it.
func TestGuestFaultC230_Wildcard(t *testing.T) {
	faultNet(t)
	server := faultStart(t, "server", faultOrders{Serve: ":7014"}, kernelEnv)
	server.expect(faultLimit, "ready ")
	// The client is on another host: if it heard of the removal, too, and first, the server's id
	// would be closed before it hears of it, and the device would stay open (docs/kernel-devices.md).
	client := faultSoft(t, "client", faultOrders{Dial: faultHere + ":7014", Idle: true, Cycles: 1})
	client.expect(faultLimit, "connected")
	server.expect(faultLimit, "connected")
	del := exec.Command("timeout", "60", "rdma", "link", "del", faultRXE)
	if err := del.Start(); err != nil {
		t.Fatal(err)
	}
	if end := server.expect(faultLimit, "ended "); !strings.HasPrefix(end, "gone: ") {
		t.Errorf("the server's end of it ended with %s", end)
	}
	client.kill()
	server.used(faultLimit)
	if err := del.Wait(); err != nil {
		t.Fatalf("rdma link del: %v", err)
	}
	sh(t, "timeout 60 rdma link add "+faultRXE+" type rxe netdev fault0")
	// The new device has its addresses after a moment.
	again := faultStart(t, "again", faultOrders{Dial: faultHere + ":7014", Cycles: 20}, kernelEnv)
	again.expect(2*faultLimit, "connected")
	server.expect(faultLimit, "connected")
}

// TestGuestFaultC142_Address: the address of a connection goes away under it, and it ends with a
// completion that says so: this kernel fails the next request at once, a device that retries gives
// RETRY_EXC_ERR.
func TestGuestFaultC142_Address(t *testing.T) {
	faultNet(t)
	server := faultSoft(t, "server", faultOrders{Serve: faultThere + ":7015"})
	server.expect(faultLimit, "ready ")
	client := faultStart(t, "client", faultOrders{Dial: faultThere + ":7015", Cycles: 1, Events: true, Timeout: 67 * time.Millisecond, Retries: 3}, kernelEnv)
	client.expect(faultLimit, "connected")
	sh(t, "ip addr del "+faultHere+"/24 dev fault0")
	said := client.until(faultLimit, "used ")
	if !strings.Contains(said, "ended LOC_QP_OP_ERR: ") && !strings.Contains(said, "ended RETRY_EXC_ERR: ") {
		t.Error("the connection did not end as it should")
	}
	if !strings.Contains(said, "async GID_CHANGE 1") {
		client.expect(faultLimit, "async GID_CHANGE 1")
	}
}
