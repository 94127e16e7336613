package lab_test

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
)

// TestGuestC027_NoMemory: memory that is not there cannot be registered, and nothing of what was
// there of it stays pinned.
func TestGuestC027_NoMemory(t *testing.T) {
	inGuest(t)
	d := kernelDevice(t)
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 8*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	at := func(from, to int) []byte { return mem[from*page : to*page] }
	if err := unix.Mprotect(at(1, 2), unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	if err := unmap(at(5, 6)); err != nil {
		t.Fatal(err)
	}
	pinned := vmPin(t)
	for _, a := range []ib.Access{0, ib.LocalWrite, ib.LocalWrite | ib.RemoteWrite} {
		for _, c := range []struct {
			what     string
			from, to int
			read     bool // the kernel pins it for reading, whatever its rights are
		}{
			{"a page without rights", 1, 2, true},
			{"one behind a good page", 0, 2, true},
			{"one between good pages", 0, 3, true},
			{"a page that is not mapped", 5, 6, false},
			{"one behind good pages", 3, 6, false},
			{"a hole", 3, 8, false},
		} {
			if c.read && a == 0 {
				continue
			}
			if mr, err := pd.RegisterBytes(at(c.from, c.to), a); !errors.Is(err, syscall.EFAULT) {
				t.Errorf("access %v: %s: %v, want EFAULT", a, c.what, err)
				if err == nil {
					mr.Close()
				}
			}
		}
		mr, err := pd.RegisterBytes(at(2, 5), a) // what is there can be
		if err != nil {
			t.Errorf("access %v: %v", a, err)
		} else if err := mr.Close(); err != nil {
			t.Error(err)
		}
	}
	if now := vmPin(t); now != pinned {
		t.Errorf("%s, before it was %s", now, pinned)
	}
}

// unmap makes a hole in a mapping.
func unmap(b []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
}

// TestGuestC033_OtherOffset: kernels refuse a region whose addresses begin at another place in a
// page than its memory.
func TestGuestC033_OtherOffset(t *testing.T) {
	inGuest(t)
	d := kernelDevice(t)
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	mem, err := unix.Mmap(-1, 0, 2*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	const rights = ib.LocalWrite | ib.RemoteWrite | ib.ZeroBased
	for _, off := range []int{1, 8, 100} {
		if mr, err := pd.RegisterBytes(mem[off:off+1000], rights); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("memory at %d of its page, addresses from 0: %v, want EINVAL", off, err)
			if err == nil {
				mr.Close()
			}
		}
	}
	mr, err := pd.RegisterBytes(mem, rights)
	if err != nil {
		t.Fatal(err)
	}
	if a := mr.Remote(0, 8).Addr; a != 0 {
		t.Errorf("addresses from %#x", a)
	}
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
}
