package rdmatest_test

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
)

func pairs(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	a, b := rdmatest.QPPair(t, verbs.QPConfig{MaxSendWR: 8, MaxRecvWR: 4})
	sendOne(t, ctx, a.QP(), b.QP())
	sendOne(t, ctx, b.QP(), a.QP())
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	<-b.Done()
	if b.Err() != io.EOF {
		t.Errorf("the peer closed: %v", b.Err())
	}
	x, y := rdmatest.JoinedPair(t, verbs.QPConfig{})
	sendOne(t, ctx, x, y)
	sendOne(t, ctx, y, x)
}

// sendOne sends a message from the second half of the sender's region to the first
// receive that is left.
func sendOne(t *testing.T, ctx context.Context, from, to *verbs.QP) {
	t.Helper()
	src, dst := from.UserData().(*verbs.MR), to.UserData().(*verbs.MR)
	off := src.Len() / 2
	copy(src.Bytes()[off:], "hello")
	if err := from.PostSend(verbs.Send(99, src.SGE(off, 5), ib.Signaled)); err != nil {
		t.Fatal(err)
	}
	wc, err := to.RecvCQ().Next(ctx)
	if err != nil || wc.Err() != nil {
		t.Fatal(wc.Status, err)
	}
	at := int(wc.ID) * rdmatest.PairRecvSize
	if !bytes.Equal(dst.Bytes()[at:at+5], []byte("hello")) {
		t.Errorf("got %q", dst.Bytes()[at:at+5])
	}
	if wc, err := from.SendCQ().Next(ctx); err != nil || wc.Err() != nil || wc.ID != 99 {
		t.Fatal(wc, err)
	}
}
