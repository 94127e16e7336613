// Package lab_test runs tests in virtual machines that have a kernel RDMA stack; see vm,
// and docs/lab.md. The tests named TestGuest… run inside, the others outside.
package lab_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// needLab ends a test where no guest can or shall be booted. LAB=on demands it, and so
// does CI=true on Linux with root; LAB="off: REASON" declines.
func needLab(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	mode, reason, _ := strings.Cut(os.Getenv("LAB"), ":")
	must := false
	switch mode {
	case "off":
		if reason = strings.TrimSpace(reason); reason == "" {
			t.Fatal(`LAB=off needs a reason: LAB="off: REASON"`)
		}
		t.Skip("LAB is off: " + reason)
	case "on":
		must = true
	case "":
		must = os.Getenv("CI") == "true" && runtime.GOOS == "linux" && os.Getuid() == 0
	default:
		t.Fatalf("LAB=%q: it is on, or off: REASON", mode)
	}
	if !must {
		t.Skip("boots a virtual machine, which takes minutes: set LAB=on, see docs/lab.md")
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Fatalf("the lab runs on linux/amd64, not on %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	for _, tool := range []string{"qemu-system-x86_64", "busybox", "cpio", "depmod", "dpkg", "rdma", "rping"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is missing: apt-get install $(lab/vm packages)", tool)
		}
	}
}

// build makes programs for the guest in dir.
func build(t *testing.T, dir string) {
	t.Helper()
	for _, args := range [][]string{
		{"test", "-c", "-o", filepath.Join(dir, "ibverbs.test"), "../internal/ibverbs"},
		{"test", "-c", "-o", filepath.Join(dir, "lab.test"), "."},
		{"build", "-o", filepath.Join(dir, "verbena"), "../cmd/verbena"},
	} {
		cmd := exec.Command("go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// guest boots one guest with a kernel and runs a script in it; dir is its /mnt. It gives
// what the script wrote.
func guest(t *testing.T, dir, kernel, limit, script string) (out []byte, err error) {
	t.Helper()
	cmd := exec.Command("./vm", "-k", kernel, "-s", dir, "-t", limit, "run", "bash", "-c", script)
	var b bytes.Buffer
	cmd.Stdout = &b
	if testing.Verbose() {
		cmd.Stdout = io.MultiWriter(&b, os.Stderr)
	}
	cmd.Stderr = cmd.Stdout
	err = cmd.Run()
	return b.Bytes(), err
}

var result = regexp.MustCompile(`^( *)--- (PASS|FAIL|SKIP): (\S+)`)

// report makes a subtest of every test that ran in the guest. It gives the number of
// those that passed.
func report(t *testing.T, out []byte) (passed map[string]bool) {
	t.Helper()
	passed = map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := result.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		passed[m[3]] = m[2] == "PASS"
		t.Run(m[3], func(t *testing.T) {
			switch m[2] {
			case "FAIL":
				t.Error("failed in the guest")
			case "SKIP":
				t.Skip("skipped in the guest")
			}
		})
	}
	return passed
}

// TestLab runs the tests of the kernel's devices in a guest: those of the provider, the
// conformance suite, and rping of rdma-core against verbena ping.
func TestLab(t *testing.T) {
	needLab(t)
	dir := t.TempDir()
	build(t, dir)
	for _, kernel := range []string{"6.1"} {
		t.Run(kernel, func(t *testing.T) {
			out, err := guest(t, dir, kernel, "1800", `status=0
				/mnt/ibverbs.test -test.v -test.timeout 5m -test.skip ABI || status=1
				/mnt/lab.test -test.v -test.timeout 15m -test.run Guest || status=1
				exit $status`)
			passed := report(t, out)
			for _, name := range []string{"TestOperations", "TestConnect/IPv6", "TestGuestConformance/C-202_EventOrder"} {
				if !passed[name] {
					t.Errorf("%s did not pass", name)
				}
			}
			if err != nil || t.Failed() {
				t.Errorf("guest with kernel %s: %v\n%s", kernel, err, failures(out))
			}
		})
	}
}

// failures gives what the tests that failed said, or all if none did.
func failures(out []byte) string {
	bad := map[string]bool{}
	said := map[string][]string{}
	name := ""
	for line := range strings.Lines(string(out)) {
		if m := result.FindStringSubmatch(line); m != nil && m[2] == "FAIL" {
			bad[m[3]] = true
		} else if f := strings.Fields(line); len(f) == 3 && f[0] == "===" {
			name = f[2]
		} else if name != "" {
			said[name] = append(said[name], line)
		}
	}
	if len(bad) == 0 {
		return string(out)
	}
	var b strings.Builder
	for name := range bad {
		fmt.Fprintf(&b, "%s:\n%s", name, strings.Join(said[name], ""))
	}
	return b.String()
}
