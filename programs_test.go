package rdma_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/rpc"
	"strings"
	"sync"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// real runs a test for both protocols on the loopback.
func real(t *testing.T, f func(t *testing.T, l *rig)) {
	t.Helper()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			onKernel(t) // what the lab keeps open is open
			rdmatest.CheckLeaks(t)
			cfg := rdma.Config{Compatible: m.compatible}
			f(t, &rig{place: onLoopback(t), server: cfg, client: cfg})
		})
	}
}

// TestC299_HTTP: files, large uploads, keep-alive, cancelled requests, and an end that is
// not long in coming.
func TestC299_HTTP(t *testing.T) {
	real(t, func(t *testing.T, l *rig) {
		ln := l.listen(t)
		big := pattern(3<<20, 0)
		mux := http.NewServeMux()
		mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "file", time.Time{}, bytes.NewReader(big))
		})
		mux.HandleFunc("/sum", func(w http.ResponseWriter, r *http.Request) {
			h := sha256.New()
			io.Copy(h, r.Body)
			fmt.Fprintf(w, "%x", h.Sum(nil))
		})
		mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		srv := &http.Server{Handler: mux}
		served := make(chan error, 1)
		go func() { served <- srv.Serve(ln) }()
		tr := &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return l.dialer().DialContext(ctx, "rdma", addr)
		}}
		client := &http.Client{Transport: tr}
		url := "http://" + ln.Addr().String()
		var wg sync.WaitGroup
		for range l.times(8, 3) {
			wg.Go(func() {
				for range l.times(3, 1) {
					resp, err := client.Get(url + "/file")
					if err != nil {
						t.Error(err)
						return
					}
					got, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if err != nil || !bytes.Equal(got, big) {
						t.Errorf("%d bytes: %v", len(got), err)
					}
					resp, err = client.Post(url+"/sum", "", bytes.NewReader(big))
					if err != nil {
						t.Error(err)
						return
					}
					got, _ = io.ReadAll(resp.Body)
					resp.Body.Close()
					if string(got) != fmt.Sprintf("%x", sha256.Sum256(big)) {
						t.Errorf("sum %s", got)
					}
				}
			})
		}
		wg.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		req, _ := http.NewRequestWithContext(ctx, "GET", url+"/slow", nil)
		if _, err := client.Do(req); err == nil {
			t.Error("a cancelled request succeeded")
		}
		cancel()
		tr.CloseIdleConnections()
		ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != http.ErrServerClosed {
			t.Error(err)
		}
	})
}

// TestC299_TLS: crypto/tls over it, with its own end of the stream.
func TestC299_TLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"verbena.test"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := x509.ParseCertificate(der)
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	real(t, func(t *testing.T, l *rig) {
		ln := tls.NewListener(l.listen(t), &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
		defer ln.Close()
		want := pattern(1<<20, 0)
		go func() {
			s, err := ln.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			if _, err := io.Copy(s, s); err != nil {
				t.Error(err)
			}
		}()
		raw, err := l.dialer().Dial("rdma", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c := tls.Client(raw, &tls.Config{ServerName: "verbena.test", RootCAs: roots})
		defer c.Close()
		go func() {
			c.Write(want)
			c.CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

// Echo is a service of net/rpc.
type Echo struct{}

// Say gives what it got.
func (Echo) Say(in string, out *string) error { *out = in; return nil }

func TestC299_RPC(t *testing.T) {
	real(t, func(t *testing.T, l *rig) {
		ln := l.listen(t)
		defer ln.Close()
		srv := rpc.NewServer()
		srv.Register(Echo{})
		go srv.Accept(ln)
		raw, err := l.dialer().Dial("rdma", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c := rpc.NewClient(raw)
		defer c.Close()
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				in, out := strings.Repeat("x", i*1000), ""
				if err := c.Call("Echo.Say", in, &out); err != nil || out != in {
					t.Error(err, len(out))
				}
			})
		}
		wg.Wait()
	})
}
