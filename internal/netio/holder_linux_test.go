package netio

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/verbena-rdma/verbena/internal/unix"
)

const (
	tableHead = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n"
	table4    = tableHead +
		"  100: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4242 2 0000000000000000 0\n" +
		"  101: 0200007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0 4343 2 0000000000000000 0\n" +
		"  102: 00000000:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 0 2 0000000000000000 0\n" +
		"  broken line\n"
	table6 = tableHead +
		"  200: B80D0120000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4242 2 0000000000000000 0\n" +
		"  201: 00000000000000000000000000000000:12B9 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 999 2 0000000000000000 0\n"
)

func TestHolder(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put := func(name, data string) {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("proc/thread-self/net/udp", table4)
	put("proc/thread-self/net/udp6", table6)
	put("proc/17/comm", "other\n")
	put("proc/4711/comm", "verbena\n")
	put("proc/4711/fd/0", "")
	put("proc/version", "no process")
	if err := os.Symlink("socket:[4242]", filepath.Join(root, "proc/4711/fd/3")); err != nil {
		t.Fatal(err)
	}
	check := func(addr, want string) {
		t.Helper()
		if got := holder(root, netip.MustParseAddrPort(addr)); got != want {
			t.Errorf("%s is held by %q, want %q", addr, got, want)
		}
	}
	check("127.0.0.1:4791", "process 4711 (verbena)")
	check("[2001:db8::1]:4791", "process 4711 (verbena)")
	check("127.0.0.2:4791", "another process (user 1001)")
	check("127.0.0.3:4791", otherProcess)
	check("127.0.0.3:4792", "another process (user 0)")
	check("10.0.0.1:4793", "another process (user 0)")
	put("sys/module/rdma_rxe/refcnt", "1")
	check("127.0.0.3:4792", kernelRXE)
	check("127.0.0.2:4791", "another process (user 1001)")
	check("127.0.0.1:9", otherProcess)
	if got := holder(filepath.Join(root, "empty"), netip.MustParseAddrPort("127.0.0.1:4791")); got != otherProcess {
		t.Errorf("without /proc: %q", got)
	}
}

func FuzzParseSocket(f *testing.F) {
	f.Add(table4[len(tableHead):])
	f.Add(table6[len(tableHead):])
	f.Fuzz(func(t *testing.T, line string) {
		if a, _, ok := parseSocket(line); ok && !a.IsValid() {
			t.Errorf("%q gives %v", line, a)
		}
	})
}

func FuzzControl(f *testing.F) {
	var c control
	end := c.put(0, unix.IPProtoIP, unix.IPTOS, 4, 2)
	end = c.put(end, unix.IPProtoUDP, unix.UDPSegment, 2, 1000)
	f.Add(c.bytes()[:end], end)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		var c control
		copy(c.bytes()[:], b)
		c.get(max(n, 0)) // must neither panic nor run away
	})
}
