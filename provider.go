package rdma

import (
	"fmt"
	"os"
	"sync"

	"github.com/verbena-rdma/verbena/internal/ibverbs"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// Choice says which provider of devices to use.
type Choice uint8

const (
	// Auto takes kernel devices with an active port if there are any, else the
	// embedded device. The environment variable VERBENA_PROVIDER (kernel or soft)
	// decides instead, if it is set.
	Auto Choice = iota
	// Kernel takes the kernel's devices, through libibverbs and librdmacm.
	Kernel
	// Soft takes the embedded device: RoCEv2 in pure Go over UDP.
	Soft
)

// String gives the word that VERBENA_PROVIDER takes.
func (c Choice) String() string {
	switch c {
	case Auto:
		return "auto"
	case Kernel:
		return "kernel"
	case Soft:
		return "soft"
	}
	return fmt.Sprintf("Choice(%d)", uint8(c))
}

// EnvProvider is the environment variable that takes precedence over Auto.
const EnvProvider = "VERBENA_PROVIDER"

// soft is the embedded provider that the process shares: an address can be held once.
var soft = sync.OnceValues(func() (*softroce.Provider, error) { return softroce.New(nil) })

// Provider gives the provider that c means, and why it was taken, in words for a log.
// Every call with the same answer gives the same provider, so that what several
// packages of a program open fits together. What was asked for and cannot be had is an
// error, never something else in its place; it wraps errors.ErrUnsupported if the
// libraries of kernel devices, or the build's ability to load them, are missing.
//
// Auto looks at the kernel's devices, which may take some milliseconds; otherwise it
// opens no device and no socket. It may be called from any goroutine.
func Provider(c Choice) (p verbs.Provider, why string, err error) {
	because := "the program asks for it"
	if c == Auto {
		because = EnvProvider + " asks for it"
		switch v := os.Getenv(EnvProvider); v {
		case "", "auto":
			var active bool
			if active, because = kernelActive(); active {
				c = Kernel
			} else {
				c = Soft
			}
		case "kernel":
			c = Kernel
		case "soft":
			c = Soft
		default:
			return nil, "", fmt.Errorf("rdma: %s=%q is not a provider: use kernel, soft or auto", EnvProvider, v)
		}
	}
	switch c {
	case Kernel:
		k, err := ibverbs.New()
		if err != nil {
			return nil, "", fmt.Errorf("rdma: kernel devices (%s=soft takes the embedded one): %w", EnvProvider, err)
		}
		return k, "kernel devices: " + because, nil
	case Soft:
		s, err := soft()
		if err != nil {
			return nil, "", fmt.Errorf("rdma: embedded device: %w", err)
		}
		return s, "embedded device: " + because, nil
	}
	return nil, "", fmt.Errorf("rdma: %v is not a choice: use Auto, Kernel or Soft", c)
}

// kernelActive reports whether a kernel device could carry something now.
func kernelActive() (active bool, why string) {
	k, err := ibverbs.New()
	if err != nil {
		return false, err.Error()
	}
	return k.Active()
}
