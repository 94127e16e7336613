package lab_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// agentAt is where the agent of a guest listens: it starts programs in the guest for the
// tests on the host's side of the bridge.
func agentAt(guest string) string { return net.JoinHostPort(guest, "7000") }

// order is what the agent is asked for, and answer is what it says: output, and
// at last the end.
type order struct {
	Args, Env []string
	Quit      bool
}

type answer struct {
	Out   []byte
	Ended bool
	Err   string // with Ended: why the program failed
}

// serveAgent serves until it is told to quit, or ctx ends.
func serveAgent(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		all.Go(func() {
			defer c.Close()
			if obey(ctx, c) {
				cancel()
			}
		})
	}
}

// obey runs the program that one connection asks for; the end of the connection ends it.
func obey(ctx context.Context, c net.Conn) (quit bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var o order
	in := json.NewDecoder(c)
	if err := in.Decode(&o); err != nil || o.Quit || len(o.Args) == 0 {
		return o.Quit
	}
	go func() {
		defer cancel()
		io.Copy(io.Discard, c)
	}()
	w := &answerWriter{enc: json.NewEncoder(c)}
	end := answer{Ended: true}
	if err := runHere(ctx, o, w); err != nil {
		end.Err = err.Error()
	}
	w.send(end)
	return false
}

// answerWriter sends what a program writes.
type answerWriter struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func (w *answerWriter) Write(p []byte) (int, error) { return len(p), w.send(answer{Out: p}) }

func (w *answerWriter) send(r answer) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.enc.Encode(r)
}

// runHere runs a program of this machine until it ends, or ctx does.
func runHere(ctx context.Context, o order, out io.Writer) error {
	cmd := exec.CommandContext(ctx, o.Args[0], o.Args[1:]...)
	cmd.Env = append(os.Environ(), o.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd.Run()
}

// runAt gives a function that runs a program of a guest.
func runAt(guest string) func(context.Context, order, io.Writer) error {
	return func(ctx context.Context, o order, out io.Writer) error { return runThere(ctx, agentAt(guest), o, out) }
}

func runThere(ctx context.Context, agent string, o order, out io.Writer) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", agent)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if err := json.NewEncoder(c).Encode(o); err != nil {
		return err
	}
	for dec := json.NewDecoder(c); ; {
		var r answer
		if err := dec.Decode(&r); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("the guest's agent: %w", err)
		}
		out.Write(r.Out)
		switch {
		case r.Err != "":
			return errors.New(r.Err)
		case r.Ended:
			return nil
		}
	}
}

// place is a machine on which a test starts programs, with the provider that they use. Those
// that TestLab builds are found by their names, see TestMain.
type place struct {
	name     string
	v4, v6   string // address
	provider string
	run      func(ctx context.Context, o order, out io.Writer) error
}

// output collects what a program writes.
type output struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// program is one that runs beside the test.
type program struct {
	name string
	out  output
	done chan error
	stop context.CancelFunc
}

// start starts a program; it is stopped when the test ends.
func (p *place) start(ctx context.Context, t testing.TB, args ...string) *program {
	ctx, stop := context.WithCancel(ctx)
	x := &program{name: args[0] + " on " + p.name, done: make(chan error, 1), stop: stop}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		x.done <- p.run(ctx, order{Args: args, Env: []string{"VERBENA_PROVIDER=" + p.provider}}, &x.out)
	}()
	t.Cleanup(func() { stop(); <-ended })
	return x
}

// must runs a program to its end, which must be a good one.
func (p *place) must(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	x := p.start(ctx, t, args...)
	if err := <-x.done; err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, x.out.String())
	}
	return x.out.String()
}

// TestAgent: what the agent runs is seen by who asked for it, and ends with him.
func TestAgent(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("sh"); err != nil {
		if runtime.GOOS == "linux" {
			t.Fatal(err)
		}
		t.Skip("no shell: ", err)
	}
	ask := func(c net.Conn, script string) (out string, end answer) {
		if err := json.NewEncoder(c).Encode(order{Args: []string{"sh", "-c", script}, Env: []string{"GREETING=hello"}}); err != nil {
			t.Error(err)
		}
		for dec := json.NewDecoder(c); !end.Ended; out += string(end.Out) {
			end = answer{}
			if err := dec.Decode(&end); err != nil {
				t.Error(err)
				return out, end
			}
		}
		return out, end
	}
	run := func(f func(c net.Conn)) (quit bool) {
		a, b := net.Pipe()
		done := make(chan bool, 1)
		go func() {
			done <- obey(t.Context(), b)
			b.Close()
		}()
		f(a)
		a.Close()
		return <-done
	}
	run(func(c net.Conn) {
		if out, end := ask(c, "echo $GREETING"); out != "hello\n" || end.Err != "" {
			t.Errorf("%q, %+v", out, end)
		}
	})
	run(func(c net.Conn) {
		if _, end := ask(c, "exit 3"); end.Err != "exit status 3" {
			t.Errorf("%+v", end)
		}
	})
	run(func(c net.Conn) { // and leaves
		if err := json.NewEncoder(c).Encode(order{Args: []string{"sleep", "600"}}); err != nil {
			t.Error(err)
		}
	})
	if !run(func(c net.Conn) {
		if err := json.NewEncoder(c).Encode(order{Quit: true}); err != nil {
			t.Error(err)
		}
	}) {
		t.Error("the agent does not quit")
	}
}
