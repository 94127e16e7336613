// Package lab_test runs tests in virtual machines that have a kernel RDMA stack; see vm,
// and docs/lab.md. Tests named TestGuest… run in a guest, those named TestHost… beside it,
// on the host's side of its bridge; TestLab boots the guests and runs both.
package lab_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// kernels are those that are booted, one after the other.
var kernels = []string{"6.1", "6.12"}

// needLab ends a test where no guest can or shall be booted, with the reason. Where none
// can be booted the test is skipped, unless it is demanded: by LAB=on, and by CI=true on
// Linux with root. LAB=auto boots where it can, LAB="off: REASON" declines; without LAB,
// and without CI, nothing is booted.
func needLab(t *testing.T) (must bool) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	mode, reason, _ := strings.Cut(os.Getenv("LAB"), ":")
	ci := os.Getenv("CI") == "true" && runtime.GOOS == "linux" && runtime.GOARCH == "amd64" && os.Getuid() == 0
	switch mode {
	case "off":
		if reason = strings.TrimSpace(reason); reason == "" {
			t.Fatal(`LAB=off needs a reason: LAB="off: REASON"`)
		}
		t.Skip("LAB is off: " + reason)
	case "on":
		must = true
	case "auto":
		must = ci
	case "":
		if must = ci; !must {
			t.Skip("boots virtual machines, which takes minutes: set LAB=on, see docs/lab.md")
		}
	default:
		t.Fatalf("LAB=%q: it is on, auto, or off: REASON", mode)
	}
	if reason := cannotBoot(); reason != "" {
		declined(t, must, reason)
	}
	return must
}

// declined ends a test that cannot run.
func declined(t *testing.T, must bool, reason string) {
	t.Helper()
	if must {
		t.Fatal("the lab cannot run, and must: " + reason)
	}
	t.Skip("the lab cannot run: " + reason)
}

// cannotBoot says why this machine cannot boot guests; empty if it can.
func cannotBoot() string {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return fmt.Sprintf("it runs on linux/amd64, not on %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	if os.Getuid() != 0 {
		return "the bridge between host and guest needs root"
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return err.Error()
	}
	for _, tool := range []string{"qemu-system-x86_64", "busybox", "cpio", "depmod", "dpkg", "xz", "apt-get", "rdma", "rping", "rstream", "iperf", "nc.traditional", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool + " is missing: apt-get install $(lab/vm packages)"
		}
	}
	return ""
}

// build makes programs for the guest in dir.
func build(t *testing.T, dir string) {
	t.Helper()
	for _, args := range [][]string{
		{"test", "-c", "-o", filepath.Join(dir, "ibverbs.test"), "../internal/ibverbs"},
		{"test", "-c", "-o", filepath.Join(dir, "lab.test"), "."},
		{"test", "-c", "-o", filepath.Join(dir, "rdma.test"), ".."},
		{"build", "-o", filepath.Join(dir, "verbena"), "../cmd/verbena"},
	} {
		goTool(t, "1", args...)
	}
	goTool(t, "0", "build", "-o", filepath.Join(dir, "verbena-nocgo"), "../cmd/verbena")
	buildRsocket(t, dir)
}

func goTool(t *testing.T, cgo string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// inTheGuest is what a guest does: first it starts programs for the tests on the host's
// side, then it runs its own; then, with both providers in one process, that part of the
// suite for which it matters who is on the other side: queue pairs, reliable connections,
// the connection manager; then, with a cable in between, those that lose and forge packets; last, it
// looks at the kernel's log.
//
// The programs are copied into the guest's memory: each start would fetch all of them from
// the host again.
//
// Faults are tried on the first kernel alone: they take minutes, and are about the library.
func inTheGuest(kernel string) string {
	skip := "none"
	if kernel != kernels[0] {
		skip = "^TestGuestFault"
	}
	return `status=0 programs=/tmp/programs
	mkdir $programs && cp /mnt/*.test /mnt/verbena* /mnt/rsocket $programs/ || exit 1
	LAB_ROLE=agent $programs/lab.test || status=1
	$programs/ibverbs.test -test.v -test.timeout 5m -test.skip ABI || status=1
	$programs/lab.test -test.v -test.timeout 15m -test.run "^TestGuest" -test.skip ` + "'" + skip + "'" + ` || status=1
	LAB_ACROSS=1 $programs/lab.test -test.v -test.timeout 15m -test.run "^TestAcross/.*/^(C-(0[7-9]|1[0-47]|19|2[0-3])|TestC)" || status=1
	LAB_WIRE=1 $programs/lab.test -test.v -test.timeout 15m -test.run "^TestWire" || status=1
	LAB_LAST=1 $programs/lab.test -test.v -test.run "^TestLast" || status=1
	exit $status`
}

// onTheHost is what is done beside it.
func onTheHost(kernel string) string {
	skip := "none"
	if kernel != kernels[0] {
		skip = "^TestHostFault"
	}
	return `status=0
	LAB_HOST=$LAB_SHARE1 "$LAB_SHARE1/lab.test" -test.v -test.timeout 15m -test.run "^TestHost" -test.skip ` + "'" + skip + "'" + ` || status=1
	LAB_ROLE=quit "$LAB_SHARE1/lab.test" ` + firstGuest + ` || status=1
	exit $status`
}

// besideTwo is what is done beside two guests, and inEach is what these do.
const (
	besideTwo = `status=0
	LAB_HOST=$LAB_SHARE1 "$LAB_SHARE1/lab.test" -test.v -test.timeout 10m -test.run "^TestPair" || status=1
	for guest in ` + firstGuest + " " + secondGuest + `; do LAB_ROLE=quit "$LAB_SHARE1/lab.test" $guest || status=1; done
	exit $status`
	inEach = `status=0
	mkdir /tmp/programs && cp /mnt/lab.test /tmp/programs || exit 1
	LAB_ROLE=agent /tmp/programs/lab.test || status=1
	LAB_LAST=1 /tmp/programs/lab.test -test.v -test.run "^TestLast" || status=1
	exit $status`
)

// vm runs lab/vm with a kernel and arguments, and gives what was written.
func vm(t *testing.T, kernel string, args ...string) (out []byte, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "./vm", append([]string{"-k", kernel}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends its guests
	cmd.Env = append(os.Environ(), "LAB_MTU=4200")                        // room for path MTU 4096
	var b bytes.Buffer
	cmd.Stdout = &b
	if testing.Verbose() {
		cmd.Stdout = io.MultiWriter(&b, os.Stderr)
	}
	cmd.Stderr = cmd.Stdout
	err = cmd.Run()
	return b.Bytes(), err
}

// TestLab runs the tests of the kernel's devices, and of the embedded device against them.
func TestLab(t *testing.T) {
	must := needLab(t)
	dir := t.TempDir()
	build(t, dir)
	for _, kernel := range kernels {
		t.Run(kernel, func(t *testing.T) {
			if out, err := vm(t, kernel, "prepare"); err != nil {
				declined(t, must, fmt.Sprintf("kernel %s cannot be had: %v\n%s", kernel, err, out))
			}
			out, err := vm(t, kernel, "-s", dir, "-t", "2400", "-H", onTheHost(kernel), "run", "bash", "-c", inTheGuest(kernel))
			passed := report(t, out)
			for _, name := range []string{"TestOperations", "TestGuestConformance/C-202_EventOrder", "TestGuestC239_EventSoak/Loop_epoll", "TestGuestC246_C248_EventSession/select/Nested", "TestHostRping/RpingServes/IPv6", "TestHostC118_Grid/Loss/4096/IPv6",
				"TestAcross/KernelToSoft/C-091_SendRecv", "TestAcross/SoftToKernel/C-202_EventOrder", "TestAcrossWithoutCgo",
				"TestAcrossC262_Streams/SoftServes/TestC265_CloseWrite/rsockets",
				"TestGuestC296_Hostile/TestC296_BeyondWindow/verbena_1", "TestAcrossC296_Hostile/KernelServes/TestC296_Misbehaving/rsockets_1/beyond_the_ring",
				"TestHostC294_Rstream/RstreamServes/IPv4/Nonblocking", "TestGuestC297_Maps/ProgramConnects/IPv6/WeWrite",
				"TestHostC299_Preload/ProgramServes/IPv4/NetcatReceives", "TestGuestC262_Streams/TestC278_ManySizes/verbena",
				"TestWire/KernelToSoft/C-233_DuplicatesAndOrder", "TestWire/SoftToKernel/C-138_SilenceAfterFatalNAK",
				"TestLastC336_KernelLog"} {
				if !passed[name] {
					t.Errorf("%s did not pass", name)
				}
			}
			if err != nil || t.Failed() {
				t.Errorf("guest with kernel %s: %v\n%s", kernel, err, failures(out))
			}
		})
	}
	t.Run("TwoGuests", func(t *testing.T) {
		if out, err := vm(t, kernels[0], "prepare"); err != nil {
			declined(t, must, fmt.Sprintf("kernel %s cannot be had: %v\n%s", kernels[0], err, out))
		}
		share := t.TempDir()
		for _, n := range []string{"1", "2"} {
			if err := os.Mkdir(filepath.Join(share, n), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Link(filepath.Join(dir, "lab.test"), filepath.Join(share, n, "lab.test")); err != nil {
				t.Fatal(err)
			}
		}
		out, err := vm(t, kernels[0], "-n", "2", "-s", share, "-t", "900", "-H", besideTwo, "run", "bash", "-c", inEach)
		if passed := report(t, out); !passed["TestPairC134_HostFrozen"] || err != nil || t.Failed() {
			t.Errorf("two guests: %v\n%s", err, failures(out))
		}
	})
}
