package rdmatest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var updateTable = flag.Bool("conformance.update", false, "write the names of tests into docs/conformance.md")

const tablePath = "../docs/conformance.md"

// row is a line of the table: number, priority, how, title, tests, note.
type row struct {
	line  int
	entry string // C-091
	cells []string
}

func (r *row) tests() string { return r.cells[4] }
func (r *row) note() string  { return r.cells[5] }

var rowPattern = regexp.MustCompile(`^\| C-\d{3} \|`)

// readTable gives the lines of the document and the rows of its tables.
func readTable(t *testing.T) (lines []string, rows []*row) {
	t.Helper()
	b, err := os.ReadFile(tablePath)
	if err != nil {
		t.Fatal(err)
	}
	lines = strings.Split(string(b), "\n")
	for i, l := range lines {
		if !rowPattern.MatchString(l) {
			continue
		}
		cells := strings.Split(strings.Trim(l, "|"), "|")
		for j := range cells {
			cells[j] = strings.TrimSpace(cells[j])
		}
		if len(cells) != 6 {
			t.Fatalf("%s:%d: %d columns, want 6", tablePath, i+1, len(cells))
		}
		rows = append(rows, &row{i, cells[0], cells})
	}
	return lines, rows
}

var (
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	testNumber = regexp.MustCompile(`C(\d{3})`)
)

// testsByEntry finds every test that carries the number of an entry: those of the
// suite, and the functions of all packages.
func testsByEntry(t *testing.T) map[string]string {
	t.Helper()
	byPlace := map[string]map[string][]string{} // entry, place, names
	add := func(entry, place, name string) {
		if byPlace[entry] == nil {
			byPlace[entry] = map[string][]string{}
		}
		byPlace[entry][place] = append(byPlace[entry][place], name)
	}
	names := map[string]bool{}
	for _, c := range allChecks() {
		if names[c.name] {
			t.Errorf("two tests of the suite are called %s", c.name)
		}
		names[c.name] = true
		entry, name, ok := strings.Cut(c.name, "_")
		if !ok || !regexp.MustCompile(`^C-\d{3}$`).MatchString(entry) {
			t.Errorf("the name %q does not begin with the number of an entry", c.name)
			continue
		}
		place := "suite"
		if c.needs&(Faults|VirtualTime|Changes) != 0 {
			place = "suite (fabric)"
		}
		add(entry, place, name)
	}
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		place, err := filepath.Rel("..", filepath.Dir(path))
		if place == "." {
			place = "root"
		}
		for _, m := range testFunc.FindAllStringSubmatch(string(b), -1) {
			for _, n := range testNumber.FindAllStringSubmatch(m[1], -1) {
				add("C-"+n[1], filepath.ToSlash(place), m[1])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for entry, places := range byPlace {
		var parts []string
		for place, names := range places {
			slices.Sort(names)
			parts = append(parts, place+": "+strings.Join(names, ", "))
		}
		slices.Sort(parts)
		all[entry] = strings.Join(parts, "; ")
	}
	return all
}

// The table of docs/conformance.md names every test that exists, and no other; and
// what must be covered is, or says why not.
func TestCoverageTable(t *testing.T) {
	lines, rows := readTable(t)
	tests := testsByEntry(t)
	seen := map[string]bool{}
	for _, r := range rows {
		if seen[r.entry] {
			t.Errorf("%s:%d: %s twice", tablePath, r.line+1, r.entry)
		}
		seen[r.entry] = true
		if want := tests[r.entry]; r.tests() != want {
			if *updateTable {
				r.cells[4] = want
				lines[r.line] = "| " + strings.Join(r.cells, " | ") + " |"
				continue
			}
			t.Errorf("%s:%d: %s names the tests %q, there are %q (go test ./rdmatest -run CoverageTable -conformance.update)",
				tablePath, r.line+1, r.entry, r.tests(), want)
		}
		if r.mustCover() && r.tests() == "" && r.note() == "" {
			t.Errorf("%s:%d: %s (%s, %s) has neither a test nor a reason", tablePath, r.line+1, r.entry, r.cells[1], r.cells[2])
		}
	}
	for entry, names := range tests {
		if !seen[entry] {
			t.Errorf("%s has no line for %s, which is tested by %s", tablePath, entry, names)
		}
	}
	if len(rows) < 250 {
		t.Errorf("only %d lines of a table", len(rows))
	}
	if *updateTable {
		if err := os.WriteFile(tablePath, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// mustCover reports whether an entry belongs to what the foundation has to show: the
// first priority, of areas A to G, L to N and Q, and not only on a kernel's device.
func (r *row) mustCover() bool {
	var n int
	fmt.Sscanf(r.entry, "C-%d", &n)
	area := n <= 145 || n >= 183 && n <= 261 || n >= 316
	how := strings.Fields(r.cells[2])
	return area && r.cells[1] == "P1" && slices.ContainsFunc(how, func(h string) bool { return h == "E" || h == "F" || h == "M" })
}
