package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"time"

	rdma "github.com/verbena-rdma/verbena"
)

// serve serves a tree until ctx ends, HTTP/1.1 and HTTP/2 on one listener.
func serve(ctx context.Context, ln net.Listener, tree fs.FS) error {
	srv := &http.Server{Handler: http.FileServerFS(tree), ReadHeaderTimeout: 10 * time.Second, Protocols: protocols(true)}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := srv.Shutdown(end); err != nil {
		return errors.Join(err, srv.Close())
	}
	return nil
}

func protocols(h2c bool) *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(h2c)
	return &p
}

// client speaks HTTP over RDMA.
func client(h2c bool) *http.Client {
	t := &http.Transport{
		DialContext: dial, // was (&net.Dialer{}).DialContext
		Protocols:   protocols(false),
	}
	if h2c {
		t.Protocols.SetHTTP1(false)
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Client{Transport: t}
}

// dial is the dialer of a transport, which always asks for TCP.
func dial(ctx context.Context, _, addr string) (net.Conn, error) {
	return (&rdma.Dialer{}).DialContext(ctx, "rdma", addr)
}

func get(ctx context.Context, c *http.Client, url string, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	n, err := io.Copy(w, resp.Body)
	if err == nil && resp.ContentLength >= 0 && n != resp.ContentLength {
		err = fmt.Errorf("%s: %d bytes of %d", url, n, resp.ContentLength)
	}
	return err
}
