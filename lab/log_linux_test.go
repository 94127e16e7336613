package lab_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// complaint is what a kernel writes when something is wrong with it.
var complaint = regexp.MustCompile(`\b(WARNING|BUG|KASAN|UBSAN)\b|Oops|Call Trace|refcount|general protection|hung[ _]task|blocked for more than|soft lockup`)

// complaints gives the first line of a kernel's log that has one, with what follows.
func complaints(log string) []string {
	lines := strings.Split(log, "\n")
	for i, l := range lines {
		if complaint.MatchString(l) {
			return lines[i:min(i+60, len(lines))]
		}
	}
	return nil
}

// TestLastC336_KernelLog: whatever the tests did to the guest's kernel, it has found no fault in
// itself. It runs in a process of its own, behind all others.
func TestLastC336_KernelLog(t *testing.T) {
	inGuest(t)
	if os.Getenv("LAB_LAST") == "" {
		t.Skip("runs in a process of its own, behind all others, with LAB_LAST set")
	}
	out, err := exec.Command("dmesg").CombinedOutput()
	if err != nil {
		t.Fatalf("dmesg: %v\n%s", err, out)
	}
	log := string(out)
	if !strings.Contains(log, "Linux version ") {
		t.Error("the kernel's log has lost its beginning, so it may have lost more: give it more room (log_buf_len)")
	}
	if bad := complaints(log); len(bad) > 0 {
		t.Errorf("the kernel complains:\n%s", strings.Join(bad, "\n"))
	}
}

// TestComplaints: what is found in a log, and what is not.
func TestComplaints(t *testing.T) {
	t.Parallel()
	const begin = "[    0.000000] Linux version 6.1.0\n[    1.000000] debug: DEBUG_INFO, no WARNINGS\n"
	if bad := complaints(begin); len(bad) > 0 {
		t.Errorf("found %q", bad)
	}
	for _, line := range []string{
		"[  100.000000] WARNING: CPU: 0 PID: 1 at drivers/infiniband/core/device.c:1 f+0x1/0x2",
		"[  100.000000] BUG: kernel NULL pointer dereference, address: 0000000000000008",
		"[  100.000000] Oops: 0000 [#1] PREEMPT SMP NOPTI",
		"[  100.000000] refcount_t: underflow; use-after-free.",
		"[  100.000000] INFO: task rdma:7 blocked for more than 120 seconds.",
		"[  100.000000] Call Trace:",
	} {
		bad := complaints(begin + line + "\nmore\n")
		if len(bad) < 2 || bad[0] != line || bad[1] != "more" {
			t.Errorf("%s: found %q", line, bad)
		}
	}
}
