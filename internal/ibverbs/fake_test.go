//go:build linux && cgo

package ibverbs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// The tests named TestFake… run on libraries of testdata/fake, in processes of their own
// that TestFake starts: libraries are loaded once in a process. So do the tests of kernel
// devices that need nothing of a kernel.
//
// A variant is what the process finds: which libraries there are, and what they lack.
type variant struct {
	name    string
	without []string // functions that the libraries lack; "?": all that need not be there
	bogus   []string // libraries that cannot be loaded
	run     string   // tests
}

var variants = []variant{
	{
		name: "full",
		run: "^(TestFakeFull.*|TestOperations|TestBatch|TestEvents|TestDataPathAllocs|TestAbilities|TestSharedReceives|TestOverrun|TestDatagrams|" +
			"TestAttributes|TestConnect|TestRejected|TestNoDevice|TestMulticast|TestOpenShared|TestNew)$",
	},
	{name: "old", without: []string{"?"}, run: "^TestFake(Old.*|FullKinds|FullAcks)$"},
	{name: "nosymbol", without: []string{"ibv_detach_mcast"}, run: "^TestFakeNoSymbol$"},
	{name: "nocmsymbol", without: []string{"rdma_init_qp_attr"}, run: "^TestFakeNoCM$"},
	{name: "nocm", bogus: []string{"librdmacm.so.1"}, run: "^TestFakeNoCM$"},
	{name: "none", bogus: []string{"libibverbs.so.1", "librdmacm.so.1"}, run: "^(TestFakeNone|TestNew)$"},
}

const (
	envFake    = "VERBENA_FAKE"         // file of the memory that is shared with the fake
	envVariant = "VERBENA_FAKE_VARIANT" // the variant of this process
)

func TestFake(t *testing.T) {
	t.Parallel()
	if os.Getenv(envVariant) != "" {
		t.Skip("this process has the fake already")
	}
	b := newFakeBuild(t)
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			out, err := b.command(t, v, "-test.v", "-test.timeout=100s", "-test.run="+v.run).CombinedOutput()
			results := regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\w+)`).FindAllStringSubmatch(string(out), -1)
			for _, r := range results {
				t.Run(r[2], func(t *testing.T) {
					if r[1] != "PASS" {
						t.Error(r[1], "in the process with the fake")
					}
				})
			}
			if err != nil || t.Failed() || len(results) == 0 {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// fakeBuild has the compiled objects of the fake.
type fakeBuild struct {
	cc, dir string
	rows    []symbolRow
}

// symbolRow is a function of lib.h.
type symbolRow struct {
	must                  bool
	family, version, name string
}

func newFakeBuild(t testing.TB) *fakeBuild {
	t.Helper()
	if os.Getenv("LAB_GUEST") != "" {
		t.Skip("a guest of the lab has the real libraries, and no sources")
	}
	b := &fakeBuild{dir: t.TempDir()}
	for _, cc := range []string{os.Getenv("CC"), "cc", "gcc", "clang"} {
		if p, err := exec.LookPath(cc); err == nil && cc != "" {
			b.cc = p
			break
		}
	}
	if b.cc == "" {
		missing(t, "there is no C compiler for the fake libraries")
	}
	text := must(os.ReadFile("lib.h"))(t)
	re := regexp.MustCompile(`(?s)X\(([01]), "([\d.]+)", [^,]*?, (\w+),[\s\\]*\(`)
	cmFrom := bytes.Index(text, []byte("#define VB_CM"))
	for _, m := range re.FindAllSubmatchIndex(text, -1) {
		at := func(i int) string { return string(text[m[2*i]:m[2*i+1]]) }
		family := "IBVERBS"
		if m[0] > cmFrom {
			family = "RDMACM"
		}
		b.rows = append(b.rows, symbolRow{at(1) == "1", family, at(2), at(3)})
	}
	if all := bytes.Count(text, []byte("\tX(")); len(b.rows) != all || all == 0 {
		t.Fatalf("%d of %d functions were found in lib.h", len(b.rows), all)
	}
	for object, files := range map[string][]string{
		"verbs.o": {"device", "memory", "queue", "recv", "qp"},
		"cm.o":    {"cm", "cm_id", "cm_conn", "cm_group"},
	} {
		args := []string{"-O2", "-r", "-o", filepath.Join(b.dir, object)}
		for _, f := range files {
			args = append(args, "testdata/fake/"+f+".c")
		}
		b.compile(t, args...)
	}
	full := filepath.Join(b.dir, "full")
	b.link(t, full, variants[0])
	return b
}

func (b *fakeBuild) compile(t testing.TB, args ...string) {
	t.Helper()
	args = append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-pthread"}, args...)
	if out, err := exec.Command(b.cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", b.cc, err, out)
	}
}

// script gives the linker what a library has, and in which versions.
func (b *fakeBuild) script(t testing.TB, dir, family string, v variant) string {
	t.Helper()
	lacks := map[string]bool{}
	for _, n := range v.without {
		lacks[n] = true
	}
	nodes := map[string][]string{}
	var order []string
	for _, r := range b.rows {
		if r.family != family || lacks[r.name] || lacks["?"] && !r.must {
			continue
		}
		if nodes[r.version] == nil {
			order = append(order, r.version)
		}
		nodes[r.version] = append(nodes[r.version], r.name)
	}
	var s strings.Builder
	for _, o := range order {
		fmt.Fprintf(&s, "%s_%s { global: %s; };\n", family, o, strings.Join(nodes[o], "; "))
	}
	s.WriteString("FAKE_" + family + " { global: fake; fake_*; local: *; };\n")
	file := filepath.Join(dir, family+".map")
	if err := os.WriteFile(file, []byte(s.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func (b *fakeBuild) link(t testing.TB, dir string, v variant) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	verbs, cm := filepath.Join(dir, "libibverbs.so.1"), filepath.Join(dir, "librdmacm.so.1")
	b.compile(t, "-shared", "-Wl,-soname,libibverbs.so.1", "-Wl,--version-script="+b.script(t, dir, "IBVERBS", v),
		"-o", verbs, filepath.Join(b.dir, "verbs.o"))
	b.compile(t, "-shared", "-Wl,-soname,librdmacm.so.1", "-Wl,--version-script="+b.script(t, dir, "RDMACM", v),
		"-o", cm, filepath.Join(b.dir, "cm.o"), verbs)
	for _, n := range v.bogus {
		if err := os.WriteFile(filepath.Join(dir, n), []byte("this is no library, but long enough to be one\n"+strings.Repeat(".", 4096)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// command is this program again, in a process that finds a variant of the libraries.
func (b *fakeBuild) command(t testing.TB, v variant, args ...string) *exec.Cmd {
	t.Helper()
	dir := filepath.Join(b.dir, v.name)
	if v.name != "full" {
		b.link(t, dir, v)
	}
	file := filepath.Join(dir, "shared")
	if err := os.WriteFile(file, make([]byte, fakeSize), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(must(os.Executable())(t), args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, envFake+"="+file, envVariant+"="+v.name, "LAB_GUEST=")
	return cmd
}

// The memory that the fake shares, as fake.h has it.
const (
	fakeWordsAt = 256
	fakeWords   = 64
	fakeFnsAt   = fakeWordsAt + 32*fakeWords
	fakeFns     = 128
	fakeSize    = fakeFnsAt + 64*fakeFns
)

// fakeLib is the fake of this process.
type fakeLib struct {
	testing.TB
	p     *Provider
	mem   []byte
	words map[string]*int64
	fns   map[string]*fakeFn
}

type fakeFn struct {
	name             [40]byte
	err, skip, calls int64
}

var mapFake = sync.OnceValues(func() ([]byte, error) {
	f, err := os.OpenFile(os.Getenv(envFake), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return syscall.Mmap(int(f.Fd()), 0, fakeSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
})

// inFake skips a test, if this process has none of the variants.
func inFake(t testing.TB, names ...string) {
	t.Helper()
	for _, n := range names {
		if os.Getenv(envVariant) == n {
			return
		}
	}
	t.Skip("needs libraries of its own: TestFake starts it")
}

// newFake gives the fake. At the end of the test it works again, nothing of the test is
// left in it, and it has not been misused.
func newFake(t testing.TB, names ...string) *fakeLib {
	t.Helper()
	inFake(t, names...)
	f := &fakeLib{TB: t, p: must(New())(t), mem: must(mapFake())(t), words: map[string]*int64{}, fns: map[string]*fakeFn{}}
	text := func(b []byte) string { s, _, _ := strings.Cut(string(b), "\x00"); return s }
	for i := range fakeWords {
		b := f.mem[fakeWordsAt+32*i:]
		f.words[text(b[:24])] = (*int64)(unsafe.Pointer(&b[24]))
	}
	for i := range fakeFns {
		n := (*fakeFn)(unsafe.Pointer(&f.mem[fakeFnsAt+64*i]))
		f.fns[text(n.name[:])] = n
	}
	before := map[string]int64{}
	for n, v := range f.words {
		before[n] = *v
	}
	t.Cleanup(func() {
		for n, v := range f.words {
			switch {
			case n == "live_ctx" || n == "live_lists": // those of the connection manager stay
			case strings.HasPrefix(n, "live_"):
				if *v != before[n] {
					t.Errorf("%s: %d, at the begin of the test %d", n, *v, before[n])
				}
			case !strings.HasSuffix(n, "_wfd"):
				*v = before[n]
			}
		}
		for _, n := range f.fns {
			n.err, n.skip = 0, 0
		}
		if n := (*int64)(unsafe.Pointer(&f.mem[0])); *n != 0 {
			t.Errorf("%d violations: %s", *n, text(f.mem[8:fakeWordsAt]))
			*n = 0
		}
	})
	return f
}

func (f *fakeLib) get(name string) int64 {
	f.Helper()
	v := f.words[name]
	if v == nil {
		f.Fatalf("the fake has no word %q", name)
	}
	return *v
}

func (f *fakeLib) set(name string, v int64) {
	f.Helper()
	f.get(name)
	*f.words[name] = v
}

// fail makes a function fail, after skip calls; errno 0: not any more.
func (f *fakeLib) fail(name string, errno syscall.Errno, skip int) {
	f.Helper()
	n := f.fns[name]
	if n == nil {
		f.Fatalf("the fake has no function %q", name)
	}
	n.err, n.skip = int64(errno), int64(skip)
}

func (f *fakeLib) calls(name string) int64 {
	f.Helper()
	if f.fns[name] == nil {
		f.Fatalf("the fake has no function %q", name)
	}
	return f.fns[name].calls
}

func (f *fakeLib) write(wfd string, b []byte) {
	f.Helper()
	if n, err := syscall.Write(int(f.get(wfd)), b); n != len(b) || err != nil {
		f.Fatal(n, err)
	}
}

// compEvent puts a completion event on the channel that was made last. A forced one comes
// also if the queue is gone.
func (f *fakeLib) compEvent(cq uintptr, forced bool) {
	f.Helper()
	b := binary.NativeEndian.AppendUint64(nil, uint64(cq))
	n := uint64(0)
	if forced {
		n = 1
	}
	f.write("comp_wfd", binary.NativeEndian.AppendUint64(b, n))
}

// asyncEvent puts an event on the context that was opened last.
func (f *fakeLib) asyncEvent(typ int32, element uintptr) {
	f.Helper()
	b := binary.NativeEndian.AppendUint64(nil, uint64(element))
	f.write("async_wfd", binary.NativeEndian.AppendUint64(b, uint64(uint32(typ))))
}

// cmEvent puts an event of the newest id on the channel that was opened last.
func (f *fakeLib) cmEvent(typ byte) {
	f.Helper()
	f.write("cm_wfd", []byte{typ})
}

// kill makes a descriptor one that reports an error and nothing to read, as those of a
// device that was removed: POLLERR, if hangup is false, else POLLHUP.
func (f *fakeLib) kill(fd int, wfd string, hangup bool) {
	f.Helper()
	if hangup {
		f.kill(int(f.get(wfd)), "", false)
		return
	}
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		f.Fatal(err)
	}
	syscall.Close(p[0])
	if err := syscall.Dup3(p[1], fd, syscall.O_CLOEXEC); err != nil {
		f.Fatal(err)
	}
	syscall.Close(p[1])
}

// within runs what must not hang.
func (f *fakeLib) within(what string, fn func() error) error {
	f.Helper()
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		f.Fatalf("%s hangs", what)
		return nil
	}
}
