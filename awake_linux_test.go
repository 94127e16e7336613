package rdma_test

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// serviceAwake is the service of a peer that only computes.
const serviceAwake = "awake"

// keepAwake keeps all processors from sleeping while a benchmark runs: a process computes on
// each whenever nothing else wants it (SCHED_IDLE). On a virtual machine a processor that
// sleeps takes tens of microseconds to wake, more than what is measured, and whether it slept
// is chance.
func keepAwake(b *testing.B) { startPeer(b, peerRole{Service: serviceAwake}) }

func init() { peerAlone[serviceAwake] = beAwake }

func beAwake() error {
	n := runtime.NumCPU()
	runtime.GOMAXPROCS(n + 1)
	ready := make(chan error, n)
	var computed atomic.Uint64
	for range n {
		go func() {
			runtime.LockOSThread()
			ready <- unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
			for {
				computed.Add(1)
			}
		}()
	}
	for range n {
		if err := <-ready; err != nil {
			return fmt.Errorf("SCHED_IDLE: %w", err)
		}
	}
	fmt.Println(serviceAwake)
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}
