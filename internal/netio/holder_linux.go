package netio

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// holder says who holds an address, as well as a process without privilege can tell.
// root is where /proc and /sys are.
func holder(root string, a netip.AddrPort) string {
	s, ok := findSocket(root, a)
	if !ok {
		return otherProcess // it may have gone meanwhile
	}
	if s.inode != 0 {
		if pid, name := findProcess(root, s.inode); pid != 0 {
			return fmt.Sprintf("process %d (%s)", pid, name)
		}
	}
	// Nobody that is visible: the kernel's Soft-RoCE holds the port on every address
	// with a socket that no process owns.
	if s.wildcard && s.user == 0 {
		if _, err := os.Stat(filepath.Join(root, "sys/module/rdma_rxe")); err == nil {
			return kernelRXE
		}
	}
	return fmt.Sprintf("%s (user %d)", otherProcess, s.user)
}

type heldSocket struct {
	inode    uint64
	user     int
	wildcard bool
}

// findSocket looks for the socket that is bound to an address, or to all addresses.
func findSocket(root string, a netip.AddrPort) (heldSocket, bool) {
	var wild heldSocket
	found := false
	for _, file := range []string{"udp", "udp6"} {
		f, err := os.Open(filepath.Join(root, "proc/thread-self/net", file))
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			local, s, ok := parseSocket(lines.Text())
			switch {
			case !ok || local.Port() != a.Port():
			case local.Addr() == a.Addr().WithZone(""):
				f.Close()
				return s, true
			case local.Addr().IsUnspecified():
				// A socket on :: blocks IPv4 addresses too, unless it is for IPv6 only; the
				// table does not say which.
				s.wildcard = true
				wild, found = s, true
			}
		}
		f.Close()
	}
	return wild, found
}

// parseSocket reads a line of /proc/net/udp (proc_pid_net(5)).
func parseSocket(line string) (local netip.AddrPort, s heldSocket, ok bool) {
	// sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode ...
	f := strings.Fields(line)
	if len(f) < 10 {
		return local, s, false
	}
	host, port, ok := strings.Cut(f[1], ":")
	if !ok {
		return local, s, false
	}
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return local, s, false
	}
	b, err := hex.DecodeString(host)
	if err != nil || len(b) != 4 && len(b) != 16 {
		return local, s, false
	}
	for i := 0; i < len(b); i += 4 { // each word is printed as a number of this host
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	addr, _ := netip.AddrFromSlice(b)
	if s.user, err = strconv.Atoi(f[7]); err != nil {
		return local, s, false
	}
	if s.inode, err = strconv.ParseUint(f[9], 10, 64); err != nil {
		return local, s, false
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(p)), s, true
}

// findProcess looks for a process that has a socket open, among those that this one
// may look into.
func findProcess(root string, inode uint64) (pid int, name string) {
	want := "socket:[" + strconv.FormatUint(inode, 10) + "]"
	proc := filepath.Join(root, "proc")
	entries, err := os.ReadDir(proc)
	if err != nil {
		return 0, ""
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, e.Name())
		fds, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if link, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err != nil || link != want {
				continue
			}
			comm, err := os.ReadFile(filepath.Join(dir, "comm"))
			if err != nil {
				comm = []byte("?")
			}
			return pid, strings.TrimSpace(string(comm))
		}
	}
	return 0, ""
}
