package rdma_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDocsProgram: the program of docs/streams.md builds when it is copied.
func TestDocsProgram(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/streams.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, ok := strings.Cut(string(text), "```go\npackage main\n")
	program, _, end := strings.Cut(program, "\n```")
	if !ok || !end {
		t.Fatal("there is no program")
	}
	goTool, err := exec.LookPath("go")
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip("no go command on this machine:", err)
	}
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte("package main\n"+program+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(goTool, "vet", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
