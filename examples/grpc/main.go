// Grpc is a gRPC server and its client over RDMA, with unary calls and streams in both
// directions. Two lines differ from a program on TCP: the listener of the server, and the
// dialer of the client.
//
//	go run ./grpc -serve -addr 127.0.0.1:8090
//	go run ./grpc -addr 127.0.0.1:8090
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

func main() {
	log.SetFlags(0)
	addr := flag.String("addr", "127.0.0.1:8090", "address of the server")
	server := flag.Bool("serve", false, "be the server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	run := client
	if *server {
		run = listen
	}
	if err := run(ctx, *addr); err != nil {
		log.Fatal(err)
	}
}

func listen(ctx context.Context, addr string) error {
	var ln net.Listener
	ln, err := rdma.Listen("rdma", addr) // was net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	log.Printf("serving on %v", ln.Addr())
	return serve(ctx, ln)
}

func client(ctx context.Context, addr string) error {
	conn, err := connect(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	c := pb.NewTestServiceClient(conn)
	data := make([]byte, 16<<20)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	start := time.Now()
	if err := unary(ctx, c, data[:1000]); err != nil {
		return err
	}
	fmt.Printf("a call of 1000 bytes: right, in %v\n", time.Since(start).Round(time.Microsecond))
	start = time.Now()
	if err := stream(ctx, c, data, 1000); err != nil {
		return err
	}
	fmt.Printf("a stream of 16 MiB there and back: right, in %v\n", time.Since(start).Round(time.Millisecond))
	return nil
}
