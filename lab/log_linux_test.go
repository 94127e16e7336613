package lab_test

import (
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// complaint is what a kernel writes when something is wrong with it.
var complaint = regexp.MustCompile(`\b(WARNING|BUG|KASAN|UBSAN)\b|Oops|Call Trace|refcount|general protection|hung[ _]task|blocked for more than|soft lockup`)

// noise is what stands among the lines of a complaint and says nothing to who reads a test's output.
var noise = regexp.MustCompile(`Modules linked in|Hardware name|Code: |\b(R([A-HJ-Z].|\d\d)|FS|CS|[CD]R\d|PKRU|EFLAGS): | \? |non-flush error|callbacks suppressed`)

// complaints gives what a kernel's log has of them: for each its line, and of what follows so much
// that it can be told where it comes from.
func complaints(log string) (all [][]string) {
	lines := strings.Split(log, "\n")
	for i := 0; i < len(lines); i++ {
		if !complaint.MatchString(lines[i]) {
			continue
		}
		one := []string{lines[i]}
		for i++; i < len(lines) && len(one) < 20; i++ {
			if strings.Contains(lines[i], "---[ end trace") {
				break
			}
			if !noise.MatchString(lines[i]) {
				one = append(one, lines[i])
			}
		}
		all = append(all, one)
	}
	return all
}

// requester is what Soft-RoCE says the first time that its requester ends a request without a
// reason of its own. It does so on networks that lose packets, which the tests make: an ACK of
// an earlier request between the packets of a READ's response has it forget that it was in that
// response (docs/kernel-devices.md). A response that is truly out of order would be said in the
// same words, but it would come on good networks, too, and there the tests excuse no requester.
var requester = regexp.MustCompile(`WARNING: CPU: \d+ PID: \d+ at drivers/infiniband/sw/rxe/rxe_comp\.c:\d+ rxe_completer\+`)

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
	for _, bad := range complaints(log) {
		if requester.MatchString(bad[0]) {
			t.Logf("Soft-RoCE's requester failed by itself: %s", bad[0])
			continue
		}
		t.Errorf("the kernel complains: %s", strings.Join(bad, "\n"))
	}
}

// TestComplaints: what is found in a log, and what is not.
func TestComplaints(t *testing.T) {
	t.Parallel()
	const begin = "[    0.000000] Linux version 6.1.0\n[    1.000000] debug: DEBUG_INFO, no WARNINGS\n"
	if bad := complaints(begin); len(bad) > 0 {
		t.Errorf("found %q", bad)
	}
	lines := []string{
		"[  100.000000] WARNING: CPU: 0 PID: 1 at drivers/infiniband/core/device.c:1 f+0x1/0x2",
		"[  100.000000] BUG: kernel NULL pointer dereference, address: 0000000000000008",
		"[  100.000000] Oops: 0000 [#1] PREEMPT SMP NOPTI",
		"[  100.000000] refcount_t: underflow; use-after-free.",
		"[  100.000000] INFO: task rdma:7 blocked for more than 120 seconds.",
		"[  100.000000] Call Trace:",
	}
	all := begin
	for _, line := range lines {
		block := line + "\n[  100.000001] RSP: 0018:ffff EFLAGS: 00000246\n[  100.000001] R13: ffff\n[  100.000002]  f+0x1/0x2\n" +
			"[  100.000003]  ? g+0x1/0x2\n[  100.000004] ---[ end trace 0000000000000000 ]---\n[  101.000000] later\n"
		want := [][]string{{line, "[  100.000002]  f+0x1/0x2"}}
		if bad := complaints(begin + block); !reflect.DeepEqual(bad, want) {
			t.Errorf("%s: found %q, want %q", line, bad, want)
		}
		all += block
	}
	if bad := complaints(all); len(bad) != len(lines) {
		t.Errorf("found %d, want %d: %q", len(bad), len(lines), bad)
	}
}
