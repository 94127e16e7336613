// Redis is a database client and server, both made for TCP, that talk over RDMA through
// two proxies. No line of theirs is different.
//
//	go run ./redis -serve 127.0.0.1:6379
//	verbena proxy -listen rdma://127.0.0.2:7000 -to tcp://127.0.0.1:6379
//	verbena proxy -listen tcp://127.0.0.1:6380 -to rdma://127.0.0.2:7000
//	go run ./redis -addr 127.0.0.1:6380
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"

	"github.com/alicebob/miniredis/v2"
)

func main() {
	log.SetFlags(0)
	serve := flag.String("serve", "", "be the server, on this TCP address")
	addr := flag.String("addr", "127.0.0.1:6380", "address of a Redis server, or of a proxy to one")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *serve == "" {
		if err := work(ctx, *addr); err != nil {
			log.Fatal(err)
		}
		return
	}
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(*serve); err != nil {
		log.Fatal(err)
	}
	log.Printf("serving on tcp %s", server.Addr())
	<-ctx.Done()
	server.Close()
}
