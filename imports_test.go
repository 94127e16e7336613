package rdma_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/verbena-rdma/verbena"

// layers says which packages of the module each package may import, and which others
// besides the standard library. The table is the architecture (docs/architecture.md);
// a package that is not in it fails the test.
var layers = map[string]struct {
	may    []string // packages of the module; "*": any but commands
	extern []string // other modules
	pure   bool     // no goroutine, clock, timer, lock or I/O
	errno  bool     // but the numbers of package syscall
	why    string
}{
	"ib":                 {pure: true, errno: true, why: "the vocabulary is shared by everything, so it depends on nothing"},
	"internal/wire":      {may: []string{"ib"}, pure: true, why: "packet formats are pure functions of bytes"},
	"internal/mem":       {may: []string{"ib"}, pure: true, why: "keys and bounds are data; the device has the lock"},
	"internal/transport": {may: []string{"ib", "internal/mem", "internal/wire", "verbs/driver"}, pure: true, why: "the protocol engine takes the time and bytes and gives packets and completions, so that tests decide what happens when"},
	"internal/ibcm":      {may: []string{"ib", "internal/wire"}, pure: true, why: "the connection manager's machine is tested with a virtual clock"},
	"internal/stream":    {may: []string{"ib"}, pure: true, why: "the protocol of stream sockets takes completions and the time and gives requests, so that tests decide what happens when"},
	"internal/unix":      {extern: []string{"golang.org/x/sys"}, why: "one package talks to the operating system"},
	"internal/netio":     {may: []string{"internal/unix"}, why: "sockets know nothing of RDMA"},
	"internal/gosched":   {why: "to live with Go's scheduler is nothing but the standard library"},
	"internal/wait":      {may: []string{"internal/gosched", "internal/unix", "verbs/driver"}, why: "waiting for a notifier is the same for every source"},
	"internal/timers":    {why: "a queue of timers knows nothing but functions"},
	"verbs/driver":       {may: []string{"ib"}, why: "the contract of providers names no provider"},
	"verbs":              {may: []string{"ib", "verbs/driver", "internal/gosched", "internal/unix", "internal/wait"}, why: "verbs must work with every provider, so it imports none"},
	"cm":                 {may: []string{"ib", "verbs", "verbs/driver", "internal/wait"}, why: "cm must work with every provider, so it imports none"},
	"event":              {may: []string{"cm", "verbs", "internal/gosched", "internal/unix", "internal/wait"}, why: "a loop watches what cm and verbs have, of any provider, so it imports none"},
	"softroce":           {may: []string{"ib", "verbs/driver", "internal/wire", "internal/mem", "internal/transport", "internal/gosched", "internal/ibcm", "internal/netio", "internal/timers", "internal/unix"}, why: "a provider implements the contract and does not know who uses it"},
	"internal/ibverbs":   {may: []string{"ib", "verbs/driver", "internal/unix"}, why: "a provider implements the contract and does not know who uses it; the only package with cgo"},
	"internal/model":     {why: "it explores schedules of any program, and knows none"},
	"internal/scripted":  {may: []string{"ib", "verbs/driver", "internal/unix"}, why: "a provider implements the contract and does not know who uses it"},
	"rdmatest":           {may: []string{"*"}, why: "tests see all layers, the root package too: tests inside of that have its fabrics by SetTestNet"},
	".":                  {may: []string{"ib", "cm", "verbs", "verbs/driver", "softroce", "internal/ibverbs", "internal/stream", "internal/timers", "internal/unix"}, why: "the root package chooses the provider, and otherwise builds on public packages only"},
	"cmd/verbena":        {may: []string{".", "ib", "cm", "verbs", "verbs/driver", "softroce", "internal/unix"}, extern: []string{"*"}, why: "the tool shows what programs can do with the public packages"},
	"lab/perf":           {may: []string{".", "ib", "cm", "verbs"}, why: "it measures what programs can do with the public packages"},
}

// impure are the standard packages that a pure package has no business with.
var impure = map[string]string{
	"net": "I/O", "os": "I/O", "syscall": "I/O", "sync": "locks", "context": "waiting",
	"os/signal": "I/O", "runtime": "scheduling", "math/rand": "hidden state", "math/rand/v2": "hidden state", "crypto/rand": "I/O",
}

// clock are the names of package time that read the clock or make a timer.
var clock = map[string]bool{
	"Now": true, "Since": true, "Until": true, "Sleep": true, "After": true, "AfterFunc": true,
	"NewTimer": true, "NewTicker": true, "Tick": true,
}

// TestImports holds every file, whatever its build constraints, against the layers.
func TestImports(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); p != "." && (strings.HasPrefix(n, ".") || n == "testdata" || n == "examples" || n == "docs") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		dir := filepath.ToSlash(filepath.Dir(p))
		rule, ok := layers[dir]
		if !ok {
			t.Errorf("%s: package %s is in no layer: add it to the table in imports_test.go and to docs/architecture.md", p, dir)
			return nil
		}
		seen[dir] = true
		f, err := parser.ParseFile(fset, p, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, spec := range f.Imports {
			imp := strings.Trim(spec.Path.Value, `"`)
			if msg := forbidden(imp, rule.may, rule.extern, rule.pure && !(rule.errno && imp == "syscall"), dir); msg != "" {
				t.Errorf("%s imports %s: %s (%s)", fset.Position(spec.Pos()), imp, msg, rule.why)
			}
		}
		if rule.pure {
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: a goroutine in a pure package (%s)", fset.Position(n.Pos()), rule.why)
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && clock[n.Sel.Name] {
						t.Errorf("%s: time.%s in a pure package (%s)", fset.Position(n.Pos()), n.Sel.Name, rule.why)
					}
				}
				return true
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir := range layers {
		if !seen[dir] {
			t.Errorf("the table in imports_test.go names %s, which has no Go file", dir)
		}
	}
}

// forbidden says why a package in dir must not import imp, or nothing.
func forbidden(imp string, may, extern []string, pure bool, dir string) string {
	switch {
	case imp == "C":
		if dir == "internal/ibverbs" {
			return ""
		}
		return "cgo belongs to internal/ibverbs"
	case imp == module || strings.HasPrefix(imp, module+"/"):
		rel := strings.TrimPrefix(strings.TrimPrefix(imp, module), "/")
		if rel == "" {
			rel = "."
		}
		for _, m := range may {
			if m == rel || m == "*" && !strings.HasPrefix(rel, "cmd/") {
				return ""
			}
		}
		return "imports go one way"
	case strings.Contains(strings.SplitN(imp, "/", 2)[0], "."):
		for _, m := range extern {
			if m == "*" || imp == m || strings.HasPrefix(imp, m+"/") {
				return ""
			}
		}
		return "the library needs the standard library only, and golang.org/x/sys in internal/unix"
	}
	if kind, bad := impure[imp]; pure && bad {
		return fmt.Sprintf("%s means %s", path.Base(imp), kind)
	}
	return ""
}

// TestForbidden keeps the test above able to fail.
func TestForbidden(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		imp, dir string
		bad      bool
	}{
		{module + "/softroce", "verbs", true},
		{module + "/verbs/driver", "verbs", false},
		{module + "/verbs", "softroce", true},
		{module, "cm", true},
		{"golang.org/x/sys/unix", "internal/netio", true},
		{"golang.org/x/sys/unix", "internal/unix", false},
		{"net", "internal/transport", true},
		{"net/netip", "internal/transport", false},
		{"sync", "internal/ibcm", true},
		{"sync/atomic", "internal/mem", false},
		{"C", "verbs", true},
		{"net", "softroce", false},
	} {
		r, ok := layers[c.dir]
		if !ok {
			t.Errorf("no layer %s", c.dir)
			continue
		}
		if got := forbidden(c.imp, r.may, r.extern, r.pure, c.dir) != ""; got != c.bad {
			t.Errorf("%s imports %s: forbidden %v, want %v", c.dir, c.imp, got, c.bad)
		}
	}
}
