package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestTree copies a real tree (package net of the Go installation, and an archive of it)
// with several clients at once and compares hashes.
func TestTree(t *testing.T) {
	rdmatest.CheckLeaks(t)
	root := t.TempDir()
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(root, "net"), os.DirFS(filepath.Join(strings.TrimSpace(string(goroot)), "src", "net"))); err != nil {
		t.Fatal(err)
	}
	big := make([]byte, 16<<20)
	for i := range big {
		big[i] = byte(i * i >> 7)
	}
	if err := os.WriteFile(filepath.Join(root, "big"), big, 0o600); err != nil {
		t.Fatal(err)
	}
	tree := os.DirFS(root)
	want := make(map[string]string)
	err = fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "index.html" {
			return err
		}
		f, err := tree.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		want[path], err = hash(f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := rdma.Listen("rdma", "127.7.2.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	serving, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- serve(serving, ln, tree) }()
	for _, h2c := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2c=%v", h2c), func(t *testing.T) {
			c := client(h2c)
			defer c.CloseIdleConnections()
			major := 1
			if h2c {
				major = 2
			}
			c.Transport = speaks{c.Transport.(*http.Transport), t, major}
			paths := make(chan string)
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for p := range paths {
						if err := compare(ctx, c, "http://"+ln.Addr().String()+"/"+p, want[p]); err != nil {
							t.Error(err)
						}
					}
				})
			}
			for p := range want {
				paths <- p
			}
			close(paths)
			wg.Wait()
		})
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(want) < 100 {
		t.Errorf("only %d files", len(want))
	}
}

// speaks holds a transport to a version of HTTP.
type speaks struct {
	*http.Transport
	t     *testing.T
	major int
}

func (s speaks) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.Transport.RoundTrip(r)
	if err == nil && resp.ProtoMajor != s.major {
		s.t.Errorf("%v: %s", r.URL, resp.Proto)
	}
	return resp, err
}

func compare(ctx context.Context, c *http.Client, url, want string) error {
	r, w := io.Pipe()
	go func() { w.CloseWithError(get(ctx, c, url, w)) }()
	got, err := hash(r)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%s: hash %s, want %s", url, got, want)
	}
	return nil
}

func hash(r io.Reader) (string, error) {
	h := sha256.New()
	_, err := io.Copy(h, r)
	return fmt.Sprintf("%x", h.Sum(nil)), err
}
