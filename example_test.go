package rdma_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/verbs"
)

// exampleConfig keeps the examples to the embedded device, on an address of their own.
var exampleConfig = func() *rdma.Config {
	p, _, err := rdma.Provider(rdma.Soft)
	if err != nil {
		log.Fatal(err)
	}
	return &rdma.Config{Provider: p}
}

// A server and a client of package net, with one line changed in each: here with a
// configuration, as the example needs an address of its own.
func Example() {
	cfg := exampleConfig()
	ln, err := (&rdma.ListenConfig{Config: cfg}).Listen(context.Background(), "rdma", ownLoopback()+":0")
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()

	c, err := (&rdma.Dialer{Config: cfg}).Dial("rdma", ln.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "hello, world")
	c.(*rdma.Conn).CloseWrite()
	answer, err := io.ReadAll(c)
	fmt.Printf("%s %v\n", answer, err)
	// Output: hello, world <nil>
}

// An HTTP server and client.
func Example_http() {
	cfg := exampleConfig()
	ln, err := (&rdma.ListenConfig{Config: cfg}).Listen(context.Background(), "rdma", ownLoopback()+":0")
	if err != nil {
		log.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "over RDMA") })}
	go srv.Serve(ln)
	defer srv.Close()

	d := &rdma.Dialer{Config: cfg}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		return d.DialContext(ctx, "rdma", addr)
	}}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get("http://" + ln.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Printf("%s %v\n", body, err)
	// Output: over RDMA <nil>
}

// RDMA where it can be had, TCP elsewhere; and a policy of waiting.
func ExampleDialer() {
	d := &rdma.Dialer{
		Timeout: 10 * time.Second,
		Config: &rdma.Config{
			Fallback: rdma.TCPFallback,
			Spin:     verbs.Adaptive,
			Trace: &rdma.Trace{FellBack: func(address string, why error) {
				log.Printf("TCP to %s: %v", address, why)
			}},
		},
	}
	c, err := d.Dial("rdma", "storage.example:7471")
	if err != nil {
		return // a *net.OpError
	}
	defer c.Close()
	log.Printf("%+v", c.(*rdma.Conn).Transport())
}
