package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	rdma "github.com/verbena-rdma/verbena"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

// service answers with what it gets. It is the test service that gRPC's implementations
// have in common, so this example needs no generated code of its own.
type service struct {
	pb.UnimplementedTestServiceServer
}

func (service) UnaryCall(_ context.Context, r *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return &pb.SimpleResponse{Payload: r.GetPayload()}, nil
}

// FullDuplexCall answers each message of the stream, and ends when the client has ended.
func (service) FullDuplexCall(s grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
	for {
		r, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&pb.StreamingOutputCallResponse{Payload: r.GetPayload()}); err != nil {
			return err
		}
	}
}

// serve serves until ctx ends, and then lets calls end.
func serve(ctx context.Context, ln net.Listener) error {
	s := grpc.NewServer()
	pb.RegisterTestServiceServer(s, service{})
	stop := context.AfterFunc(ctx, s.GracefulStop)
	err := s.Serve(ln)
	if !stop() {
		s.GracefulStop() // waits for the one that is under way
	}
	return err
}

// connect gives a client whose connections are RDMA.
func connect(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithContextDialer(dial), // the line that is new
		grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func dial(ctx context.Context, addr string) (net.Conn, error) {
	return (&rdma.Dialer{}).DialContext(ctx, "rdma", addr)
}

// unary sends p in one call and compares the answer.
func unary(ctx context.Context, c pb.TestServiceClient, p []byte) error {
	r, err := c.UnaryCall(ctx, &pb.SimpleRequest{Payload: &pb.Payload{Body: p}})
	if err == nil && !bytes.Equal(r.GetPayload().GetBody(), p) {
		err = errors.New("other bytes came back")
	}
	return err
}

// stream sends p as count messages, receives at the same time, and compares.
func stream(ctx context.Context, c pb.TestServiceClient, p []byte, count int) error {
	s, err := c.FullDuplexCall(ctx)
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() { sent <- send(s, p, count) }()
	for i := range count {
		r, err := s.Recv()
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if !bytes.Equal(r.GetPayload().GetBody(), message(p, i, count)) {
			return fmt.Errorf("message %d: other bytes came back", i)
		}
	}
	if err := <-sent; err != nil {
		return err
	}
	if _, err := s.Recv(); err != io.EOF {
		return fmt.Errorf("the end: %w", err)
	}
	return nil
}

func send(s grpc.BidiStreamingClient[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse], p []byte, count int) error {
	for i := range count {
		if err := s.Send(&pb.StreamingOutputCallRequest{Payload: &pb.Payload{Body: message(p, i, count)}}); err != nil {
			return err
		}
	}
	return s.CloseSend()
}

// message is the i-th of count parts of p.
func message(p []byte, i, count int) []byte { return p[i*len(p)/count : (i+1)*len(p)/count] }
