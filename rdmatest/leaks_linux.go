package rdmatest

import (
	"os"
	"path/filepath"
	"strings"
)

// openDescriptors maps the descriptors of the process to what they are. Without /proc
// it is empty.
func openDescriptors() map[string]string {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	all := map[string]string{}
	for _, e := range entries {
		// The descriptor of the listing itself is gone by now.
		if what, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			if what == "anon_inode:[eventpoll]" && watchesOneSocket(e.Name()) {
				what = "socket: its epoll set" // see internal/netio
			}
			all[e.Name()] = what
		}
	}
	return all
}

// watchesOneSocket reports whether an epoll set is that of a socket of the embedded device:
// it has nothing else in it (proc(5), fdinfo).
func watchesOneSocket(fd string) bool {
	info, err := os.ReadFile("/proc/self/fdinfo/" + fd)
	if err != nil {
		return false
	}
	var targets []string
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "tfd:" {
			targets = append(targets, f[1])
		}
	}
	if len(targets) != 1 {
		return false
	}
	what, err := os.Readlink("/proc/self/fd/" + targets[0])
	return err == nil && strings.HasPrefix(what, "socket:")
}

// osThreads counts the threads of the process; 0: not known.
func osThreads() int {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0
	}
	return len(entries)
}
