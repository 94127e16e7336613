package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

// runAsMain makes the test program behave as verbena, so that tests can start it as a
// process.
const runAsMain = "VERBENA_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runAsMain) != "" {
		main()
	}
	os.Exit(m.Run())
}

// here runs a command in this process.
func here(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = dispatch(context.Background(), args, strings.NewReader(""), &out, &err)
	return code, out.String(), err.String()
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for _, k := range []struct {
		args           string
		code           int
		stdout, stderr string // parts
	}{
		{"", exitUsage, "", "ping"},
		{"help", exitOK, "exchange data with a peer", ""},
		{"-h", exitOK, "ping", ""},
		{"--help", exitOK, "ping", ""},
		{"help ping", exitOK, "rping -s", ""},
		{"ping -h", exitOK, "-interval", ""},
		{"ping --help", exitOK, "-interval", ""},
		{"version", exitOK, "verbena", ""},
		{"--version", exitOK, "go1", ""},
		{"version -x", exitUsage, "", "-x"},
		{"pong", exitUsage, "", `"pong"`},
		{"help pong", exitUsage, "", `"pong"`},
		{"ping -x", exitUsage, "", "usage: verbena ping"},
		{"ping --n=-1", exitUsage, "", "-n"},
		{"ping -n x", exitUsage, "", `"x"`},
		{"ping -size 22", exitUsage, "", "23"},
		{"ping -size 65536", exitUsage, "", "65535"},
		{"ping -interval -1s", exitUsage, "", "-interval"},
		{"ping -timeout 0", exitUsage, "", "-timeout"},
		{"ping -wait hard", exitUsage, "", "block, epoll, poll, spin"},
		{"ping a b", exitUsage, "", "2: a b"},
		{"ping -listen a b", exitUsage, "", "exclude"},
		{"ping a:b:c", exitUsage, "", "no address"},
		{"ping 127.0.0.1:x", exitUsage, "", "no port number"},
		{"ping 127.0.0.1:0", exitUsage, "", "no port number"},
		{"ping 127.0.0.1:65536", exitUsage, "", "no port number"},
		{"ping :7174", exitUsage, "", "no host"},
	} {
		code, stdout, stderr := here(strings.Fields(k.args)...)
		if code != k.code || !strings.Contains(stdout, k.stdout) || !strings.Contains(stderr, k.stderr) || (k.stderr == "") != (stderr == "") {
			t.Errorf("verbena %s: exit code %d\n%s%s", k.args, code, stdout, stderr)
		}
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	for _, k := range []struct {
		in     string
		listen bool
		out    string
	}{
		{"127.0.0.1", false, "127.0.0.1:7174"},
		{"127.0.0.1:9", false, "127.0.0.1:9"},
		{"::1", false, "[::1]:7174"},
		{"[::1]", false, "[::1]:7174"},
		{"[::1]:9", false, "[::1]:9"},
		{"fe80::1%eth0", false, "[fe80::1%eth0]:7174"},
		{"::ffff:10.0.0.1", false, "10.0.0.1:7174"},
		{"", true, "0.0.0.0:7174"},
		{":9", true, "0.0.0.0:9"},
		{":0", true, "0.0.0.0:0"},
		{"[::]:9", true, "[::]:9"},
		{"10.0.0.1:0", true, "10.0.0.1:0"},
	} {
		a, err := resolve(context.Background(), k.in, k.listen)
		if err != nil || a.String() != k.out {
			t.Errorf("%q: %v, %v", k.in, a, err)
		}
	}
	if a, err := resolve(context.Background(), "localhost:80", false); err != nil || !a.Addr().IsLoopback() || a.Port() != 80 {
		t.Error(a, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := resolve(ctx, "nowhere.invalid", false); err == nil {
		t.Error("nowhere is somewhere")
	}
	var wrong *usageError
	if _, err := resolve(context.Background(), "", false); !errors.As(err, &wrong) {
		t.Error(err)
	}
}
