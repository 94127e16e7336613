package rdma_test

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// inNamespace runs f on a thread that is in a network namespace.
func inNamespace(name string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		fd, err := unix.Open("/run/netns/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err != nil {
			done <- fmt.Errorf("namespace %s: %w", name, err)
			return
		}
		done <- f()
	}()
	return <-done
}
