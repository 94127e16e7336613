package rdmatest_test

import (
	"io"
	"testing"
	"testing/synctest"

	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestConnPair: both directions carry, in real and in virtual time, and nothing is left.
func TestConnPair(t *testing.T) {
	use := func(t *testing.T) {
		a, b := rdmatest.ConnPair(t)
		if tr := a.Transport(); tr.Kind != "rdma" {
			t.Errorf("%+v", tr)
		}
		if a.RemoteAddr().String() != b.LocalAddr().String() {
			t.Error(a.RemoteAddr(), b.LocalAddr())
		}
		for range 2 {
			if _, err := a.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 5)
			if _, err := io.ReadFull(b, got); err != nil || string(got) != "hello" {
				t.Fatalf("%q, %v", got, err)
			}
			a, b = b, a
		}
	}
	t.Run("real", func(t *testing.T) {
		rdmatest.CheckLeaks(t)
		use(t)
	})
	t.Run("virtual", func(t *testing.T) { synctest.Test(t, use) })
}
