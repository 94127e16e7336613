// Package examples has no code of its own: each example is a directory.
package examples

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var marked = regexp.MustCompile("(?s)<!-- code: (\\S+) -->\n```\\w+\n(.*?)```")

// unmarked finds code of a program that has no mark.
var unmarked = regexp.MustCompile("(?m)^(.*)\n```(?:go|c)\n")

// TestDocs: code in the documents that is marked with its source is there as it stands,
// so what a reader copies was compiled and run.
func TestDocs(t *testing.T) {
	t.Parallel()
	docs, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	readmes, err := filepath.Glob("*/README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, doc := range append(docs, readmes...) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range marked.FindAllStringSubmatch(string(text), -1) {
			blocks++
			source, err := os.ReadFile(filepath.Join("..", m[1]))
			if err != nil {
				t.Errorf("%s: %v", doc, err)
				continue
			}
			if !contains(string(source), m[2]) {
				t.Errorf("%s: a block is not in %s as it stands:\n%s", doc, m[1], m[2])
			}
		}
	}
	if blocks == 0 {
		t.Error("no document has marked code: the marks have changed")
	}
	// What docs/events.md teaches is compiled and run to the last line.
	text, err := os.ReadFile("../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range unmarked.FindAllStringSubmatch(string(text), -1) {
		if !strings.HasPrefix(m[1], "<!-- code: ") {
			t.Errorf("docs/events.md has code without a source behind %q", m[1])
		}
	}
}

// contains reports whether the lines of block follow one another in source, all with the
// same indentation before them.
func contains(source, block string) bool {
	for depth := range 4 {
		indent := strings.Repeat("\t", depth)
		lines := strings.Split(strings.TrimSuffix(block, "\n"), "\n")
		for i, l := range lines {
			if l != "" {
				lines[i] = indent + l
			}
		}
		if strings.Contains("\n"+source, "\n"+strings.Join(lines, "\n")+"\n") {
			return true
		}
	}
	return false
}
