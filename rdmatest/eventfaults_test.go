package rdmatest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const faultsPath = "../docs/events-faults.md"

// areaN are the entries of the first priority of area N.
func areaN(t *testing.T) map[string]bool {
	t.Helper()
	_, rows := readTable(t)
	all := map[string]bool{}
	for _, r := range rows {
		var n int
		fmt.Sscanf(r.entry, "C-%d", &n)
		if n >= 236 && n <= 261 && r.cells[1] == "P1" {
			all[r.entry] = true
		}
	}
	return all
}

// TestEventFaultsTable: docs/events-faults.md has a line for each pitfall and each entry of
// area N, and what a line names exists.
func TestEventFaultsTable(t *testing.T) {
	b, err := os.ReadFile(faultsPath)
	if err != nil {
		t.Fatal(err)
	}
	want := areaN(t)
	if len(want) < 10 {
		t.Fatalf("only %d entries of area N", len(want))
	}
	for i := range 26 {
		want[fmt.Sprintf("P%d", i+1)] = true
	}
	suite := map[string]bool{}
	for _, c := range allChecks() {
		_, name, _ := strings.Cut(c.name, "_")
		suite[name] = true
	}
	line := regexp.MustCompile(`^\| (P\d+|C-\d{3}) \|`)
	file := regexp.MustCompile("`([a-z]+(?:/[a-z_]+)*\\.go)`")
	seen := map[string]bool{}
	for i, l := range strings.Split(string(b), "\n") {
		at := fmt.Sprintf("%s:%d", faultsPath, i+1)
		m := line.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		if seen[m[1]] {
			t.Errorf("%s: %s twice", at, m[1])
		}
		seen[m[1]] = true
		if !want[m[1]] {
			t.Errorf("%s: %s is nothing that the tables are about", at, m[1])
		}
		cells := strings.Split(strings.Trim(l, "|"), "|")
		if len(cells) != 4 {
			t.Errorf("%s: %d columns, want 4", at, len(cells))
			continue
		}
		files := file.FindAllStringSubmatch(cells[2], -1)
		if len(files) == 0 {
			t.Errorf("%s: no file that handles %s", at, m[1])
		}
		for _, f := range files {
			if _, err := os.Stat(filepath.Join("..", f[1])); err != nil {
				t.Errorf("%s: %v", at, err)
			}
		}
		n := 0
		for part := range strings.SplitSeq(cells[3], ";") {
			place, names, ok := strings.Cut(strings.TrimSpace(part), ": ")
			if !ok {
				t.Errorf("%s: %q is not PACKAGE: TEST, TEST", at, part)
				continue
			}
			for name := range strings.SplitSeq(names, ", ") {
				n++
				if place == "suite" && !suite[name] || place != "suite" && !testsOf(t, place)[name] {
					t.Errorf("%s: there is no test %s: %s", at, place, name)
				}
			}
		}
		if n == 0 {
			t.Errorf("%s: no test for %s", at, m[1])
		}
	}
	for what := range want {
		if !seen[what] {
			t.Errorf("%s has no line for %s", faultsPath, what)
		}
	}
}

// testsOf gives the tests of a package.
func testsOf(t *testing.T, pkg string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(pkg), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllStringSubmatch(string(b), -1) {
			all[m[1]] = true
		}
	}
	return all
}
