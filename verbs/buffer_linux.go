package verbs

import (
	"bytes"
	"os"
	"strconv"
	"sync"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// mapping is what was mapped for a buffer, guards included.
type mapping struct{ whole []byte }

func mapBuffer(n int, o *BufferOptions) (mapping, []byte, error) {
	page := unix.PageSize()
	size := roundUp(n, page)
	var whole, b []byte
	var err error
	switch {
	case o.HugePages:
		if page, err = hugePageSize(); err != nil {
			return mapping{}, nil, err
		}
		size = roundUp(n, page)
		whole, err = unix.MmapHuge(size)
		b = whole
	case o.Guard:
		if whole, err = unix.Mmap(size+2*page, unix.ProtNone); err != nil {
			return mapping{}, nil, err
		}
		b = whole[page : page+size]
		err = unix.Mprotect(b, unix.ProtReadWrite)
	default:
		whole, err = unix.Mmap(size, unix.ProtReadWrite)
		b = whole
	}
	if err == nil && o.DontFork {
		err = unix.Madvise(b, unix.AdviseDontFork)
	}
	if err != nil {
		if whole != nil {
			unix.Munmap(whole)
		}
		return mapping{}, nil, err
	}
	return mapping{whole}, b, nil
}

func roundUp(n, page int) int { return (n + page - 1) / page * page }

// hugePageSize gives the size of the system's default huge page.
var hugePageSize = sync.OnceValues(func() (int, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) >= 2 && string(f[0]) == "Hugepagesize:" {
			kib, err := strconv.Atoi(string(f[1]))
			return kib << 10, err
		}
	}
	return 2 << 20, nil
})

// Closed buffers stay mapped for a while, without access and without pages, so that a
// late use of one faults. The oldest go when there are many.
const (
	graveMax   = 512     // mappings; the system allows 65530
	graveBytes = 1 << 36 // of address space
)

var graves struct {
	sync.Mutex
	q     [][]byte
	bytes uint64
}

// unmap takes the memory away. The error is that of this mapping.
func (m mapping) unmap() error {
	w := m.whole
	if unix.Madvise(w, unix.AdviseDontNeed) != nil || unix.Mprotect(w, unix.ProtNone) != nil {
		return unix.Munmap(w) // huge pages of some systems; then the addresses are free
	}
	graves.Lock()
	defer graves.Unlock()
	graves.q = append(graves.q, w)
	graves.bytes += uint64(len(w))
	var err error
	for len(graves.q) > 1 && (len(graves.q) > graveMax || graves.bytes > graveBytes) {
		old := graves.q[0]
		graves.q = append(graves.q[:0], graves.q[1:]...)
		graves.bytes -= uint64(len(old))
		if e := unix.Munmap(old); err == nil {
			err = e
		}
	}
	return err
}
