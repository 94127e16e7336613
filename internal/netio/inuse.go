package netio

import (
	"fmt"
	"net/netip"
)

// InUseError says who holds an address.
type InUseError struct {
	Addr   netip.AddrPort
	Holder string // "process 4711 (verbena)", "kernel Soft-RoCE (rdma_rxe)", or "another process"
	Err    error  // syscall.EADDRINUSE
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("UDP address %s is held by %s", e.Addr, e.Holder)
}

func (e *InUseError) Unwrap() error { return e.Err }

// HeldBy gives the holder, for who does not know this type.
func (e *InUseError) HeldBy() string { return e.Holder }

const (
	otherProcess = "another process"
	kernelRXE    = "kernel Soft-RoCE (rdma_rxe)"
)
