package rdmatest

import (
	"flag"
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
		switch {
		case c.needs&(VirtualTime|Changes) != 0:
			place = "suite (fabric)"
		case c.needs&Faults != 0:
			place = "suite (wire)"
		}
		add(entry, place, name)
	}
	guests := runInGuests(t)
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		place, err := filepath.Rel("..", filepath.Dir(path))
		for _, m := range testFunc.FindAllStringSubmatch(string(b), -1) {
			at := filepath.ToSlash(place)
			if at == "." {
				if at = "root"; guests[m[1]] {
					at = "root and lab"
				}
			}
			for _, n := range testNumber.FindAllStringSubmatch(m[1], -1) {
				add("C-"+n[1], at, m[1])
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

// runInGuests gives the tests of the root package that the lab runs on kernel devices, which
// it names.
func runInGuests(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, err := filepath.Glob("../lab/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range rootTest.FindAllString(string(b), -1) {
			names[name] = true
		}
	}
	return names
}

var rootTest = regexp.MustCompile(`\bTest(?:C\d{3}_)+\w+`)

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
		for _, missing := range r.missing() {
			t.Errorf("%s:%d: %s (%s, %s) has neither %s nor a reason", tablePath, r.line+1, r.entry, r.cells[1], r.cells[2], missing)
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

// missing says what an entry of the first priority lacks, if it has no note: a test where it
// can be provoked without hardware; and, where that is a kernel's device, alone or at the
// other end, one of those that run there.
func (r *row) missing() []string {
	if r.cells[1] != "P1" || r.note() != "" {
		return nil
	}
	at := func(how ...string) bool {
		return slices.ContainsFunc(strings.Fields(r.cells[2]), func(h string) bool { return slices.Contains(how, h) })
	}
	has := func(places ...string) bool {
		return slices.ContainsFunc(strings.Split(r.tests(), "; "), func(s string) bool {
			place, _, _ := strings.Cut(s, ": ")
			return slices.Contains(places, place)
		})
	}
	var missing []string
	if at("E", "F", "M") && r.tests() == "" {
		missing = append(missing, "a test")
	}
	if at("K") && !has("suite", "lab", "root and lab") {
		missing = append(missing, "a test on a kernel's device")
	}
	if at("X") && !has("suite", "suite (wire)", "lab", "root and lab") {
		missing = append(missing, "a test against a kernel's device")
	}
	return missing
}
