// Package unix holds what the library needs of the operating system beyond the
// standard library: event descriptors, mappings outside the Go heap, poll and epoll,
// and batches of datagrams. It is the only importer of golang.org/x/sys/unix, so that
// the rest builds everywhere; elsewhere than on Linux its functions give
// errors.ErrUnsupported.
//
// The functions are thin: errors are the system's own (syscall.Errno), EINTR is
// retried, nothing is logged or cached.
package unix
