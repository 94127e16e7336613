// Http serves a directory over HTTP on RDMA, or copies one from such a server. Two lines
// differ from a program on TCP: the listener of the server, and the dialer of the client.
//
//	go run ./http -serve . -addr 127.0.0.1:8080
//	go run ./http -fetch /README.md -addr 127.0.0.1:8080
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"

	rdma "github.com/verbena-rdma/verbena"
)

func main() {
	log.SetFlags(0)
	addr := flag.String("addr", "127.0.0.1:8080", "address of the server")
	dir := flag.String("serve", "", "serve this directory")
	fetch := flag.String("fetch", "", "fetch this path, and print it")
	h2c := flag.Bool("h2c", false, "fetch with HTTP/2 (the server speaks both)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch {
	case *dir != "":
		var ln net.Listener
		if ln, err = rdma.Listen("rdma", *addr); err == nil { // was net.Listen("tcp", *addr)
			log.Printf("serving %s on %v", *dir, ln.Addr())
			err = serve(ctx, ln, os.DirFS(*dir))
		}
	case *fetch != "":
		err = get(ctx, client(*h2c), "http://"+*addr+*fetch, os.Stdout)
	default:
		err = errors.New("say what to do: -serve DIRECTORY or -fetch PATH")
	}
	if err != nil {
		log.Fatal(err)
	}
}
