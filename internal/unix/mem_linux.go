package unix

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// What may be done with pages.
const (
	ProtNone      = unix.PROT_NONE
	ProtRead      = unix.PROT_READ
	ProtReadWrite = unix.PROT_READ | unix.PROT_WRITE
)

// What Madvise can say about pages.
const (
	AdviseDontFork = unix.MADV_DONTFORK
	AdviseDoFork   = unix.MADV_DOFORK
	AdviseDontNeed = unix.MADV_DONTNEED
	AdvisePopulate = unix.MADV_POPULATE_WRITE
)

// PageSize gives the size of a page in bytes.
func PageSize() int { return syscall.Getpagesize() }

// Mmap maps n bytes of zeroes outside the Go heap. Pages come when they are touched.
func Mmap(n int, prot int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, prot, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
}

// MmapHuge maps n bytes of explicit huge pages; n must be a multiple of their size.
// ENOMEM: the system has none to spare.
func MmapHuge(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, ProtReadWrite, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB)
}

// Munmap ends a mapping; b must be exactly what Mmap gave.
func Munmap(b []byte) error { return unix.Munmap(b) }

// Mprotect sets what may be done with whole pages.
func Mprotect(b []byte, prot int) error { return unix.Mprotect(b, prot) }

// Madvise tells the kernel about whole pages.
func Madvise(b []byte, advice int) error { return unix.Madvise(b, advice) }

// MemlockLimit gives the limit of locked memory in bytes (RLIMIT_MEMLOCK);
// unlimited: the largest value.
func MemlockLimit() (uint64, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return 0, err
	}
	return r.Cur, nil
}
