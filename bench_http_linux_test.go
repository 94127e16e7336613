package rdma_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// processTime gives the processor time of a process.
func processTime(b testing.TB, pid int) time.Duration {
	s, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	f := strings.Fields(string(s[strings.LastIndexByte(string(s), ')')+1:]))
	var user, system int
	fmt.Sscan(f[11], &user)
	fmt.Sscan(f[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// BenchmarkHTTP: small requests over connections that are kept, from 16 goroutines, to a
// server in another process. cpu-ns is the processor time of both for a request.
func BenchmarkHTTP(b *testing.B) {
	for _, r := range []peerRole{{Network: "tcp"}, {Network: "rdma", Spin: "sleep"}} {
		b.Run(r.name(), func(b *testing.B) {
			r.Service = "http"
			p := startPeer(b, r)
			tr := &http.Transport{MaxIdleConnsPerHost: 64, DialContext: func(context.Context, string, string) (net.Conn, error) {
				return dialAs(r, p.address)
			}}
			defer tr.CloseIdleConnections()
			client := &http.Client{Transport: tr}
			get := func() error {
				resp, err := client.Get("http://" + p.address + "/")
				if err != nil {
					return err
				}
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				return err
			}
			if err := get(); err != nil {
				b.Fatal(err)
			}
			cpu := processTime(b, os.Getpid()) + processTime(b, p.cmd.Process.Pid)
			start := time.Now()
			b.SetParallelism(8)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := get(); err != nil {
						b.Error(err)
						return
					}
				}
			})
			took := time.Since(start)
			cpu = processTime(b, os.Getpid()) + processTime(b, p.cmd.Process.Pid) - cpu
			b.ReportMetric(float64(b.N)/took.Seconds(), "requests/s")
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/request")
		})
	}
}
