package ibverbs

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestABI compiles assertions that every structure and number in abi_verbs.h and abi_cm.h
// is that of the headers of rdma-core (libibverbs-dev and librdmacm-dev in Debian), for the
// machine and for arm64. VERBENA_RDMA_INCLUDE names the headers' directory, if they are not
// in /usr/include.
func TestABI(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the interface is one of Linux")
	}
	include := os.Getenv("VERBENA_RDMA_INCLUDE")
	if include == "" {
		include = "/usr/include"
	}
	for _, h := range []string{"infiniband/verbs.h", "rdma/rdma_cma.h"} {
		if _, err := os.Stat(filepath.Join(include, h)); err != nil {
			missing(t, h+" is not in "+include+": install libibverbs-dev and librdmacm-dev, or set VERBENA_RDMA_INCLUDE")
		}
	}
	// A cross compiler must not see the rest of /usr/include.
	only := t.TempDir()
	for _, d := range []string{"infiniband", "rdma"} {
		if err := os.Symlink(filepath.Join(include, d), filepath.Join(only, d)); err != nil {
			t.Fatal(err)
		}
	}
	for _, cc := range []struct{ name, pkg string }{
		{"gcc", "gcc"},
		{"aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu and libc6-dev-arm64-cross"},
	} {
		t.Run(cc.name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(cc.name); err != nil {
				missing(t, cc.name+" is not there: install "+cc.pkg)
			}
			if out, err := compile(cc.name, only, "testdata/abi_check.c"); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			// The assertions can fail.
			wrong := filepath.Join(t.TempDir(), "wrong.c")
			text := "#include <infiniband/verbs.h>\n_Static_assert(sizeof(struct ibv_sge) == 17, \"wrong on purpose\");\n"
			if err := os.WriteFile(wrong, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := compile(cc.name, only, wrong); err == nil || !strings.Contains(string(out), "wrong on purpose") {
				t.Errorf("a wrong assertion gives %v\n%s", err, out)
			}
		})
	}
}

func compile(cc, include, file string) ([]byte, error) {
	return exec.Command(cc, "-std=gnu11", "-fsyntax-only", "-isystem", include, file).CombinedOutput()
}

// missing skips a test, and fails it where everything should be there.
func missing(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}
