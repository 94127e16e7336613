package lab_test

import (
	"bufio"
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

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
