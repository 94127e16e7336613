package verbs_test

import (
	"runtime"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestInlineDuringClose: a post that copies from a region keeps it until it has. Close, which
// takes the memory away, comes at any moment.
func TestInlineDuringClose(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	const size = 256 << 10 // the copy takes as long as Close
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxInline: size})
	sqp.Auto()
	for range 200 {
		mr, err := r.pd.Alloc(size, ib.LocalWrite)
		r.ok(err)
		clear(mr.Bytes())
		begun, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			var dst [1]verbs.WC
			for n := 0; ; n++ {
				if err := qp.PostSend(verbs.Send(1, mr.SGE(0, size), ib.Inline|ib.Signaled)); err != nil {
					ended <- err
					return
				}
				if n == 0 {
					close(begun)
				}
				cq.Poll(dst[:])
				runtime.Gosched()
			}
		}()
		<-begun
		r.ok(mr.Close())
		if err := <-ended; err != verbs.ErrClosed {
			t.Fatal(err)
		}
	}
}
