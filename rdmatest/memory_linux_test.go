package rdmatest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestC040_KindsOfMemory: what a program can map can be registered, and carries traffic in both
// directions: the region is the memory itself, for the program, for the peer, and for whoever
// shares the file.
func TestC040_KindsOfMemory(t *testing.T) {
	t.Parallel()
	const size = 4 << 20 // a multiple of large pages
	file := func(dir string) int {
		f, err := os.Create(filepath.Join(dir, "memory"))
		if err == nil {
			err = f.Truncate(size)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return int(f.Fd())
	}
	memory, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
	if err == nil {
		t.Cleanup(func() { unix.Close(memory) })
		err = unix.Ftruncate(memory, size)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []struct {
		name  string
		fd    int
		flags int
	}{
		{"anonymous private", -1, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS},
		{"anonymous shared", -1, unix.MAP_SHARED | unix.MAP_ANONYMOUS},
		{"tmpfs", memory, unix.MAP_SHARED},
		{"file shared", file(t.TempDir()), unix.MAP_SHARED},
		{"file private", file(t.TempDir()), unix.MAP_PRIVATE},
		{"huge pages", -1, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_HUGETLB},
	} {
		t.Run(kind.name, func(t *testing.T) {
			mem, err := unix.Mmap(kind.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, kind.flags)
			if err == unix.ENOMEM && kind.flags&unix.MAP_HUGETLB != 0 {
				t.Skip("the administrator has set no huge pages aside (vm.nr_hugepages)")
			}
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Munmap(mem)
			synctest.Test(t, func(t *testing.T) { carries(newTB(t, fabricBed(NewFabric(t, 40)), nil, nil), mem) })
			if kind.fd < 0 {
				return
			}
			was := make([]byte, size)
			if _, err := unix.Pread(kind.fd, was, 0); err != nil {
				t.Fatal(err)
			}
			if shared := kind.flags&unix.MAP_SHARED != 0; bytes.Equal(was, mem) != shared {
				t.Errorf("the file has what the peer wrote: %v, want %v", !shared, shared)
			}
		})
	}
}

// carries has a peer write into memory, and read from it.
func carries(t *tb, mem []byte) {
	a, b := t.pair()
	mr, err := b.pd.RegisterBytes(mem, allRights)
	t.ok(err, "register")
	defer t.closed(mr, "region")
	const n, far = 20_000, 3 << 20
	want := pattern(n, 1)
	a.fill(0, n, 1)
	a.send(verbs.Write(1, mr.Remote(far, n), a.sge(0, n), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	t.same(mem[far:far+n], want, "written by the peer")
	copy(mem[5:], pattern(n, 2))
	a.send(verbs.Read(2, mr.Remote(5, n), a.sge(30_000, n), ib.Signaled))
	a.sent(2, ib.StatusSuccess)
	t.same(a.mr.Bytes()[30_000:30_000+n], pattern(n, 2), "read by the peer")
	a.recv(4, 0, n)
	t.ok(b.qp.PostSend(verbs.Send(3, mr.SGE(5, n), ib.Signaled)), "post")
	b.sent(3, ib.StatusSuccess)
	a.got(4, ib.StatusSuccess)
	t.same(a.mr.Bytes()[:n], pattern(n, 2), "sent")
}
