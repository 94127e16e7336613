package rdmatest

import (
	"os"
	"path/filepath"
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
			all[e.Name()] = what
		}
	}
	return all
}

// osThreads counts the threads of the process; 0: not known.
func osThreads() int {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0
	}
	return len(entries)
}
