package lab_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var result = regexp.MustCompile(`^( *)--- (PASS|FAIL|SKIP): (\S+)`)

// maySkip are the reasons for which a test of the guest may be skipped: all other tests can
// run there, as it is made for them.
var maySkip = []string{
	"needs libraries of its own", "a guest of the lab has the real libraries", // the fake of internal/ibverbs
	"tried on the first kernel",
	"soft0: shared receive queues: the device has none", // the embedded device, in TestAcross
	"softroce: queue pair of type UC", "softroce: queue pair of type UD",
}

// report makes a subtest of every test that ran in the guest. It gives those that passed.
func report(t *testing.T, out []byte) (passed map[string]bool) {
	t.Helper()
	passed = map[string]bool{}
	said := map[string]string{}
	name := ""
	for line := range strings.Lines(string(out)) {
		m := result.FindStringSubmatch(line)
		if m == nil {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "===" {
				name = f[2]
			} else {
				said[name] += line
			}
			continue
		}
		passed[m[3]] = m[2] == "PASS"
		t.Run(m[3], func(t *testing.T) {
			switch why := strings.TrimSpace(said[m[3]]); m[2] {
			case "FAIL":
				t.Error("failed in the guest")
			case "SKIP":
				if !slices.ContainsFunc(maySkip, func(reason string) bool { return strings.Contains(why, reason) }) {
					t.Fatalf("skipped in the guest, which has all that a test may need: %s", why)
				}
				t.Skip(why)
			}
		})
	}
	return passed
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
