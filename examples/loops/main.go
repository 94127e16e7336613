// Loops is one echo service, for messages over RDMA and for bytes over TCP, that can wait
// for its events in every way that a Go program has. The service is the same each time;
// what differs is a file of its own:
//
//	goroutines.go       a goroutine for each source: the way of Go
//	select_linux.go     one loop around select(2)
//	poll_linux.go       one loop around poll(2)
//	epoll_linux.go      one loop around epoll(7), level or edge triggered
//	gnet_linux.go       the event loop of a framework, gnet
//	eventloop_linux.go  event.Loop, which does all of it by itself
//
// client.go is somebody who asks it, in the way of Go.
//
// docs/events.md explains them side by side.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"

	rdma "github.com/verbena-rdma/verbena"
)

// ways are the ways to wait, by name. Each serves until ctx ends.
var ways = map[string]func(context.Context, *server) error{
	"goroutines": serveGoroutines,
}

func main() {
	log.SetFlags(0)
	way := flag.String("way", "goroutines", "how to wait: "+strings.Join(wayNames(), ", "))
	rdmaAddr := flag.String("rdma", "127.0.0.1:7471", "address for RDMA")
	tcpAddr := flag.String("tcp", "127.0.0.1:7472", "address for TCP")
	text := flag.String("ask", "", "be a client instead: send this text to the server, and print its answer")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *text != "" {
		err = client(ctx, *rdmaAddr, *text)
	} else {
		err = run(ctx, *way, *rdmaAddr, *tcpAddr)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func wayNames() []string { return slices.Sorted(maps.Keys(ways)) }

func run(ctx context.Context, way, rdmaAddr, tcpAddr string) error {
	serve, ok := ways[way]
	if !ok {
		return fmt.Errorf("-way %s: there are %s", way, strings.Join(wayNames(), ", "))
	}
	p, why, err := rdma.Provider(rdma.Auto)
	if err != nil {
		return err
	}
	s, err := newServer(p, rdmaAddr, tcpAddr)
	if err != nil {
		return err
	}
	defer s.close()
	log.Printf("RDMA on %v (%s), TCP on %v, waiting with %s", s.rdmaAddr(), why, s.tcpAddr(), way)
	return serve(ctx, s)
}
