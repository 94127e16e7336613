package lab_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestGuestSoftBesideKernel: where the kernel's Soft-RoCE has the UDP port of all addresses,
// the embedded device says so.
func TestGuestSoftBesideKernel(t *testing.T) {
	inGuest(t)
	cmd := exec.CommandContext(t.Context(), "verbena", "ping", "-n", "1")
	cmd.Env = append(cmd.Environ(), "VERBENA_PROVIDER=soft")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), ":4791 is held by kernel Soft-RoCE") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestAcrossWithoutCgo: a program that was built without cgo uses the embedded device
// although there is a kernel's, says why, and pings it.
func TestAcrossWithoutCgo(t *testing.T) {
	guest := acrossGuest(t)
	nocgo := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "ip", append([]string{"netns", "exec", "soft", "verbena-nocgo", "ping", "-n", "3"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %v\n%s", cmd.Args, err, out)
		}
		return string(out)
	}
	if out := nocgo(); !strings.Contains(out, "embedded device: ") || !strings.Contains(out, "cgo") {
		t.Errorf("not the embedded device, or not why:\n%s", out)
	}
	ctx := t.Context()
	s := guest.start(ctx, t, "verbena", "ping", "-listen", acrossAddr.kernel4)
	until(ctx, t, s, "serving on")
	nocgo("-tcp=false", acrossAddr.kernel4)
	s.stop()
	<-s.done
}
