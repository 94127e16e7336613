// Package softroce is the embedded device: RoCEv2 in pure Go over an ordinary UDP
// socket, wire compatible with Linux Soft-RoCE and NICs. It needs no privilege, no
// kernel module and no C library.
//
// # Addresses
//
// One device, "soft0", with one port stands for the host: its GID table has every
// address of the interfaces that are up, and the loopback addresses that this process
// has taken. The UDP port is fixed (4791), so an address belongs to one process at a
// time. A socket is opened when the first queue pair or connection manager id needs
// its address, and is held until [Provider.Close]. If another process has the address,
// the error names it. On loopback every process takes an address of its own in
// 127.0.0.0/8; ::1 exists only once, so two processes cannot meet over it.
//
// # Threads
//
// There is one goroutine for each open address, and it sleeps in Go's poller. Posting
// goroutines build and send packets themselves, and a single goroutine that waits for
// completions reads the socket itself, so that a small message needs no change of
// goroutine. A device without traffic has no timer and uses no CPU.
//
// # What it does not have
//
// Unreliable services, datagrams, shared receive queues and alternate paths: the calls
// give errors that wrap [errors.ErrUnsupported]. Memory windows are of type 2 only.
package softroce
