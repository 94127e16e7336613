package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
)

// rig is a server and a client of it.
func rig(t *testing.T) (context.Context, pb.TestServiceClient) {
	t.Helper()
	rdmatest.CheckLeaks(t)
	ln, err := rdma.Listen("rdma", "127.7.4.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	serving, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(serving, ln) }()
	conn, err := connect(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return ctx, pb.NewTestServiceClient(conn)
}

func random(seed byte, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// TestCalls: unary calls of several sizes, and streams of megabytes in both directions, at
// the same time on one connection.
func TestCalls(t *testing.T) {
	ctx, c := rig(t)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for _, n := range []int{0, 1, 1000, 1 << 20} {
				if err := unary(ctx, c, random(byte(i), n)); err != nil {
					t.Errorf("a call of %d bytes: %v", n, err)
				}
			}
			if err := stream(ctx, c, random(byte(i), 4<<20), 100); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestCancel: the end of a call by its client, and by its time, both in the middle of a
// stream; other calls on the connection do not notice.
func TestCancel(t *testing.T) {
	ctx, c := rig(t)
	for _, k := range []struct {
		name string
		with func(context.Context) (context.Context, context.CancelFunc)
		want codes.Code
	}{
		{"cancelled", context.WithCancel, codes.Canceled},
		{"late", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		}, codes.DeadlineExceeded},
	} {
		t.Run(k.name, func(t *testing.T) {
			call, end := k.with(ctx)
			defer end()
			s, err := c.FullDuplexCall(call)
			if err != nil {
				t.Fatal(err)
			}
			one := random(1, 100_000)
			for n := 0; err == nil; n++ {
				if n == 10 && k.want == codes.Canceled {
					go end() // while Recv waits, or before
				}
				s.Send(&pb.StreamingOutputCallRequest{Payload: &pb.Payload{Body: one}}) // Recv says what is wrong
				_, err = s.Recv()
			}
			if status.Code(err) != k.want {
				t.Errorf("the stream ended with %v", err)
			}
			if err := unary(ctx, c, one); err != nil {
				t.Errorf("another call: %v", err)
			}
		})
	}
}

// TestUnserved: a call to nobody fails, it does not hang.
func TestUnserved(t *testing.T) {
	rdmatest.CheckLeaks(t)
	conn, err := connect("127.7.4.2:1")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := unary(ctx, pb.NewTestServiceClient(conn), nil); status.Code(err) != codes.Unavailable {
		t.Errorf("a call to nobody: %v", err)
	}
}
