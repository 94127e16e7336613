package rdma_test

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestC297_Maps: bytes are placed where the map says, before what is written later; what
// is not mapped is an error; after Unmap nothing is written any more.
func TestC297_Maps(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		l.server.Maps, l.client.Maps = 2, 2
		s, c := l.pair(t)
		defer closeBoth(s, c)
		mr, err := s.PD().Alloc(10000, ib.LocalWrite|ib.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		defer mr.Close()
		plain, err := s.PD().Alloc(4096, ib.LocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		defer plain.Close()
		_, err = c.MapWrite([]byte("x"), 0)
		isErr(t, "before any map", err, rdma.ErrNoMap)
		_, err = s.Map(plain, 0)
		isErr(t, "without the right", err, syscall.EINVAL)
		if c.PD() != s.PD() { // the ends of one device share it
			_, err = c.Map(mr, 0)
			isErr(t, "of another domain", err, verbs.ErrPDMismatch)
		}
		isErr(t, "Unmap of nothing", s.Unmap(mr), syscall.EINVAL)

		off, err := s.Map(mr, 500)
		if err != nil || off != 500 {
			t.Fatal(off, err)
		}
		_, err = s.Map(mr, 600)
		isErr(t, "overlap", err, syscall.EINVAL)
		writes(t, s, []byte("mapped")) // behind the news of the map
		reads(t, c, []byte("mapped"))
		want := pattern(7001, 9)
		if n, err := c.MapWrite(want, 500+13); n != len(want) || err != nil {
			t.Fatal(n, err)
		}
		writes(t, c, []byte("done"))
		reads(t, s, []byte("done"))
		if !bytes.Equal(mr.Bytes()[13:13+len(want)], want) || mr.Bytes()[12] != 0 || mr.Bytes()[13+len(want)] != 0 {
			t.Error("the bytes are not where they should be")
		}
		for _, o := range []int64{0, 499, 10500, -1} {
			_, err = c.MapWrite([]byte("x"), o)
			isErr(t, "outside", err, rdma.ErrNoMap)
		}
		if n, err := c.MapWrite(bytes.Repeat([]byte{1}, 100), 10500-60); n > 60 || !errors.Is(err, rdma.ErrNoMap) {
			t.Error("beyond the end:", n, err)
		}
		l.comes(t, "what fits is there", func() bool { return mr.Bytes()[9999] == 1 })
		// The peer must be there to agree; nobody needs to be in a call of it.
		if err := s.Unmap(mr); err != nil {
			t.Fatal(err)
		}
		if !l.client.Compatible { // rsockets has no word for it
			_, err = c.MapWrite([]byte("x"), 500)
			isErr(t, "after Unmap", err, rdma.ErrNoMap)
		}
		if off, err := s.Map(mr, -1); err != nil || off != 0 {
			t.Error("again:", off, err)
		}
	})
}

// TestC297_UnmapAgain: an Unmap that the write deadline ended can be called again, while the
// peer's answer is missing and after it has come; then the memory can be mapped anew.
func TestC297_UnmapAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &rig{place: onFabric(t), client: rdma.Config{Maps: 1}}
		s, c := l.pair(t)
		defer closeBoth(s, c)
		mr, err := s.PD().Alloc(4096, ib.LocalWrite|ib.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		defer mr.Close()
		for _, late := range []bool{false, true} {
			if _, err := s.Map(mr, 0); err != nil {
				t.Fatal(err)
			}
			writes(t, s, []byte("mapped"))
			reads(t, c, []byte("mapped"))
			time.Sleep(time.Second)
			heal := l.fabric.Cut(serverAddr, clientAddr)
			for range 2 {
				s.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
				isErr(t, "Unmap without an answer", s.Unmap(mr), os.ErrDeadlineExceeded)
			}
			heal()
			if late {
				time.Sleep(10 * time.Second)
			}
			s.SetWriteDeadline(time.Time{})
			if err := s.Unmap(mr); err != nil {
				t.Error("again:", err)
			}
			_, err := c.MapWrite([]byte("x"), 0)
			isErr(t, "after Unmap", err, rdma.ErrNoMap)
		}
		isErr(t, "Unmap of nothing", s.Unmap(mr), syscall.EINVAL)
	})
}

// TestMapTooLarge: a map's length has 32 bits. Of the memory nothing is touched, so it need
// not be there.
func TestMapTooLarge(t *testing.T) {
	if strconv.IntSize < 64 {
		t.Skip("no region is so large here")
	}
	synctest.Test(t, func(t *testing.T) {
		l := &rig{place: onFabric(t), client: rdma.Config{Maps: 1}}
		s, c := l.pair(t)
		defer closeBoth(s, c)
		size := uint64(1) << 32
		mr, err := s.PD().Alloc(int(size), ib.LocalWrite|ib.RemoteWrite)
		if errors.Is(err, syscall.ENOMEM) {
			t.Skip("this system promises no 4 GiB:", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer mr.Close()
		_, err = s.Map(mr, 0)
		isErr(t, "4 GiB", err, syscall.EINVAL)
	})
}
