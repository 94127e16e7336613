package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// comparison is a row of the table: our number against the other's, in turns.
type comparison struct {
	name   string
	target string
	ours   func() (float64, error)
	theirs func() (float64, error)
	ratios []float64
	a, b   []float64
}

const guestAddr = "10.9.0.2"

// Numbers of messages: a second or so of each, so that what a process does once, in an emulated
// guest the translation of its code above all, is a small part.
const (
	latCount  = 10000
	bulkCount = 5000
)

// compare measures every pair once a round, so that whatever disturbs the machine disturbs
// both, and prints the median of the ratios and their range.
func compare(rounds int, only string) error {
	kernel := "VERBENA_PROVIDER=kernel"
	us := func(test string, size, n int, wait string) func() (float64, error) {
		return func() (float64, error) {
			return ourPair(nil, kernel, guestAddr, options{test: test, size: size, n: n, depth: depthOf(test), wait: wait})
		}
	}
	all := []*comparison{
		{name: "2-byte SEND latency, polling, µs", target: "≤ 1.15",
			ours: us(sendLat, 2, latCount, polling), theirs: perftest("ib_send_lat", 4, "-s", "2", "-n", strconv.Itoa(latCount))},
		{name: "2-byte SEND latency, adaptive : -e, µs", target: "≤ 1.0",
			ours: us(sendLat, 2, latCount, adaptive), theirs: perftest("ib_send_lat", 4, "-s", "2", "-n", strconv.Itoa(latCount), "-e")},
		{name: "2-byte SEND latency, asleep : -e, µs", target: "≤ 1.0",
			ours: us(sendLat, 2, latCount, asleep), theirs: perftest("ib_send_lat", 4, "-s", "2", "-n", strconv.Itoa(latCount), "-e")},
		{name: "64 KiB SEND, MiB/s", target: "≥ 0.95",
			ours: us(sendBW, 65536, bulkCount, polling), theirs: perftest("ib_send_bw", 3, "-s", "65536", "-n", strconv.Itoa(bulkCount))},
		{name: "64 KiB WRITE, MiB/s", target: "≥ 0.95",
			ours: us(writeBW, 65536, bulkCount, polling), theirs: perftest("ib_write_bw", 3, "-s", "65536", "-n", strconv.Itoa(bulkCount))},
		{name: "64 KiB READ, MiB/s", target: "≥ 0.95",
			ours: us(readBW, 65536, bulkCount, polling), theirs: perftest("ib_read_bw", 3, "-s", "65536", "-n", strconv.Itoa(bulkCount))},
		{name: "64 KiB WRITE, embedded : rxe, MiB/s, asleep", target: "≥ 2",
			ours: func() (float64, error) {
				return ourPair([]string{"ip", "netns", "exec", "perf"}, "VERBENA_PROVIDER=soft", "127.0.0.1",
					options{test: writeBW, size: 65536, n: bulkCount, depth: 128, wait: asleep})
			},
			theirs: us(writeBW, 65536, bulkCount, asleep)},
	}
	sockets := func(network string, o options) func() (float64, error) {
		return func() (float64, error) {
			o.network = network
			return ourPair(nil, kernel, guestAddr, o)
		}
	}
	lat := options{test: sockLat, size: 64, n: latCount, depth: 1}
	bulk := options{test: sockBW, size: 65536, n: 3, depth: 1000}
	waiting := func(o options, wait string) options { o.wait = wait; return o }
	all = append(all,
		&comparison{name: "64-byte stream, polling : rstream, µs", target: "≤ 0.95", ours: sockets("rdma", waiting(lat, polling)), theirs: rstream(lat)},
		&comparison{name: "64-byte stream, adaptive : rstream, µs", target: "≤ 0.95", ours: sockets("rdma", waiting(lat, adaptive)), theirs: rstream(lat)},
		&comparison{name: "64-byte stream, adaptive : rstream -T b, µs", target: "≤ 0.95", ours: sockets("rdma", waiting(lat, adaptive)), theirs: rstream(lat, "-T", "b")},
		&comparison{name: "64-byte stream, asleep : rstream -T b, µs", target: "≤ 0.95", ours: sockets("rdma", waiting(lat, asleep)), theirs: rstream(lat, "-T", "b")},
		&comparison{name: "64 KiB stream, polling : rstream, MiB/s", target: "≥ 1.1", ours: sockets("rdma", waiting(bulk, polling)), theirs: rstream(bulk)},
		&comparison{name: "64 KiB stream, asleep : rstream -T b, MiB/s", target: "≥ 1.1", ours: sockets("rdma", waiting(bulk, asleep)), theirs: rstream(bulk, "-T", "b")},
		&comparison{name: "64-byte stream : TCP on the same interface, µs", target: "stated", ours: sockets("rdma", waiting(lat, asleep)), theirs: sockets("tcp", lat)},
		&comparison{name: "64 KiB stream : TCP on the same interface, MiB/s", target: "stated", ours: sockets("rdma", waiting(bulk, asleep)), theirs: sockets("tcp", bulk)},
	)
	all = slices.DeleteFunc(all, func(c *comparison) bool { return !strings.Contains(c.name, only) })
	if out, err := exec.Command("sh", "-c", "ip netns add perf && ip -n perf link set lo up").CombinedOutput(); err != nil {
		return fmt.Errorf("network namespace: %w: %s", err, out)
	}
	var failed []error
	for round := range rounds {
		for _, c := range all {
			runs := []func() (float64, error){c.ours, c.theirs}
			got := make([]float64, 2)
			ok := true
			for i := range runs {
				k := (i + round) % 2 // who is first changes
				v, err := runs[k]()
				for try := 0; err != nil && try < 3; try++ {
					// perftest finds no clock (its times are infinite) on a busy machine.
					v, err = runs[k]()
				}
				if err != nil {
					failed = append(failed, fmt.Errorf("%s, round %d: %w", c.name, round, err))
					ok = false
				}
				got[k] = v
			}
			if !ok || got[1] == 0 {
				continue
			}
			c.a, c.b, c.ratios = append(c.a, got[0]), append(c.b, got[1]), append(c.ratios, got[0]/got[1])
			fmt.Printf("round %d: %-46s %10.2f %10.2f ratio %.3f\n", round, c.name, got[0], got[1], got[0]/got[1])
		}
	}
	fmt.Printf("\n| What | Ours | Other | Ratio: median (range of %d) | Target |\n|---|---|---|---|---|\n", rounds)
	for _, c := range all {
		if len(c.ratios) == 0 {
			fmt.Printf("| %s | – | – | – | %s |\n", c.name, c.target)
			continue
		}
		fmt.Printf("| %s | %.1f | %.1f | %.2f (%.2f–%.2f) | %s |\n", c.name, median(c.a), median(c.b), median(c.ratios), slices.Min(c.ratios), slices.Max(c.ratios), c.target)
	}
	return errors.Join(failed...)
}

func depthOf(test string) int {
	if test == sendLat {
		return 1
	}
	return 128
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// ourPair measures with two processes of this program.
func ourPair(wrap []string, env, addr string, o options) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	at := addr + ":18600"
	start := func(role string) (*exec.Cmd, io.ReadCloser, error) {
		args := append(append([]string{}, wrap...), self, role, at, "-test", o.test, "-size", strconv.Itoa(o.size), "-n", strconv.Itoa(o.n),
			"-depth", strconv.Itoa(o.depth), "-wait", cmp.Or(o.wait, polling), "-network", cmp.Or(o.network, "rdma"))
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), env)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, nil, err
		}
		return cmd, out, cmd.Start()
	}
	server, out, err := start("-serve")
	if err != nil {
		return 0, err
	}
	if _, err := find(out, "ready"); err != nil {
		server.Process.Kill()
		return 0, fmt.Errorf("server: %w", errors.Join(err, finish(server)))
	}
	client, out, err := start("-connect")
	if err != nil {
		server.Process.Kill()
		return 0, errors.Join(err, finish(server))
	}
	v, err := find(out, "result")
	// Both end by themselves, in order: the connection is closed, and none of them tells an error.
	if err = errors.Join(err, finish(client), finish(server)); err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(v), 64)
}

// finish waits for a process, for a while.
func finish(cmd *exec.Cmd) error {
	kill := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
	defer kill.Stop()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return nil
}

// find reads lines until one begins with word, and gives the rest of it.
func find(r io.Reader, word string) (string, error) {
	for s := bufio.NewScanner(r); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), word); ok {
			return rest, nil
		}
	}
	return "", fmt.Errorf("ended without %q", word)
}

// perftest measures with a program of perftest; column is that of the number in its table,
// from zero: t_typical, or the average bandwidth.
func perftest(name string, column int, args ...string) func() (float64, error) {
	return func() (float64, error) {
		args := append([]string{"-d", "rxe0", "-F", "-x", "1", "-u", "19"}, args...)
		server := exec.Command(name, args...)
		if err := server.Start(); err != nil {
			return 0, err
		}
		defer server.Wait()
		defer server.Process.Kill()
		var last string
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(300 * time.Millisecond) {
			out, err := exec.Command("timeout", append([]string{"120", name}, append(args, guestAddr)...)...).CombinedOutput()
			last = string(out)
			if err != nil {
				continue // until it listens
			}
			return number(last, column)
		}
		return 0, fmt.Errorf("%s: %s", name, last)
	}
}

// number takes a column of the last row of perftest's table.
func number(out string, column int) (float64, error) {
	var v float64
	found := false
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) <= column {
			continue
		}
		if _, err := strconv.Atoi(f[0]); err != nil {
			continue
		}
		if x, err := strconv.ParseFloat(f[column], 64); err == nil && x > 0 && !math.IsInf(x, 0) {
			v, found = x, true
		}
	}
	if !found {
		return 0, fmt.Errorf("no number in %s", out)
	}
	return v, nil
}
