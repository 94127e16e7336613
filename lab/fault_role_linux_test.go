package lab_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// faultEnv holds the orders of a process that lives through a fault: the test that
// causes it watches from outside, as a device that is removed stays until the last
// process that knew it has ended.
const faultEnv = "LAB_FAULT"

// faultOrders say what a process does.
type faultOrders struct {
	Serve   string        // address to serve on; it echoes
	Dial    string        // address to connect to, or
	Idle    bool          // say nothing, wait for the end
	Cycles  int           // connections one after the other
	Timeout time.Duration // for an acknowledgement; zero: from the path
	Retries int           // zero: the default
	Limit   time.Duration // for a connection to be made
	Events  bool          // say what comes as asynchronous events
	Self    string        // address of this host: connect to itself, until the end
	Pin     int           // register that many bytes, and half as much each time it fails
	Reopen  bool          // in the last cycle: wait for a device to be there again, and use it
	Bystand bool          // wait for completions on the device without a connection, too
	Stay    bool          // whatever comes on the input
	Scarce  string        // address of this host: connect to itself with ever more descriptors
	Fresh   bool          // and the device was never open before
	Idler   string        // address of this host: connect to itself once, then do nothing
	Watch   bool          // but keep an id on the device
	Starved string        // address to serve on, at first without descriptors
	Open    bool          // say what there is of the kernel's RDMA
}

// faultRole is what the process says, one a line: what and details.
//
//	ready ADDR            it listens
//	connected             the connection stands, and has carried a message if it is not idle
//	ended CLASS: TEXT     it does not any more
//	async EVENT PORT      an asynchronous event
//	used OBJECTS FDS THREADS KIB   after a cycle, with everything closed
func faultRole(o faultOrders) error {
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf("fault: "+format+"\n", args...)
	}
	if o.Open {
		return faultOpen(say)
	}
	p, why, err := rdma.Provider(rdma.Auto)
	if err != nil {
		return err
	}
	say("provider %s: %s", p.Name(), why)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if !o.Stay {
		go func() { // the end of the input is the order to end
			io.Copy(io.Discard, os.Stdin)
			stop()
		}()
	}
	r := &faultRun{o: o, p: p, say: say}
	switch {
	case o.Serve != "":
		return r.serve(ctx)
	case o.Pin > 0:
		return r.pin()
	case o.Scarce != "":
		return r.scarce(ctx)
	case o.Idler != "":
		return r.idler(ctx)
	case o.Starved != "":
		return r.starved(ctx)
	case o.Self != "":
		return r.selfCycles(ctx)
	}
	for i := range o.Cycles {
		if o.Reopen && i == o.Cycles-1 {
			if err := r.again(ctx, o.Dial, func(c *faultConn) error { return c.exchange(ctx) }); err != nil {
				return err
			}
			say("again")
			<-ctx.Done() // the test ends it
			continue
		}
		if err := r.cycle(ctx); err != nil {
			say("ended %s: %v", faultClass(err), err)
		}
		r.used()
	}
	return nil
}

type faultRun struct {
	o     faultOrders
	p     verbs.Provider
	say   func(format string, args ...any)
	watch map[*verbs.Device]bool
	wmu   sync.Mutex
}

// used says what the process has.
func (r *faultRun) used() {
	time.Sleep(100 * time.Millisecond) // not to wait for anything: threads end a little later
	runtime.GC()
	n := func(dir string) int { l, _ := os.ReadDir(dir); return len(l) }
	b, _ := os.ReadFile("/proc/self/statm")
	pages, _ := strconv.Atoi(strings.Fields(string(b))[1])
	objects := append(verbs.Objects(), cm.Objects()...)
	r.say("used %d %d %d %d %q", len(objects), n("/proc/self/fd"), n("/proc/self/task"), pages*os.Getpagesize()>>10, objects)
}

// observe reports the asynchronous events of a device.
func (r *faultRun) observe(ctx context.Context, d *verbs.Device) {
	r.wmu.Lock()
	defer r.wmu.Unlock()
	if !r.o.Events || r.watch[d] {
		return
	}
	if r.watch == nil {
		r.watch = make(map[*verbs.Device]bool)
	}
	r.watch[d] = true
	go func() {
		for ev, err := range d.Async().Events(ctx) {
			if err != nil {
				r.say("async %s", faultClass(err))
				return
			}
			a, err := d.Port(max(ev.Port, 1))
			r.say("async %v %d %v %v", ev.Type, ev.Port, a.State, err)
		}
	}()
}

// bystand waits for a completion that will not come, of a queue that no connection uses.
func (r *faultRun) bystand(ctx context.Context, d *verbs.Device) {
	if !r.o.Bystand {
		return
	}
	cq, err := d.CreateCQ(1, nil)
	if err != nil {
		r.say("bystander %s: %v", faultClass(err), err)
		return
	}
	go func() {
		_, err := cq.Next(ctx)
		r.say("bystander %s: %v", faultClass(err), err)
		if err := cq.Close(); err != nil {
			r.say("close %s: %v", faultClass(err), err)
		}
	}()
}

const (
	faultMessage = 4096
	faultMemory  = 1 << 20 // so that a leak shows
)

// faultConn is one end of a connection.
type faultConn struct {
	pd *verbs.PD
	cq *verbs.CQ
	mr *verbs.MR
	qp *verbs.QP
}

func (c *faultConn) open(d *verbs.Device, create func(*verbs.PD, verbs.QPConfig) (*verbs.QP, error)) (err error) {
	if c.pd, err = d.AllocPD(); err != nil {
		return err
	}
	if c.cq, err = d.CreateCQ(16, nil); err != nil {
		return err
	}
	if c.mr, err = c.pd.Alloc(faultMemory, ib.LocalWrite); err != nil {
		return err
	}
	for i := range c.mr.Bytes() {
		c.mr.Bytes()[i] = byte(i) // all of it is there
	}
	if c.qp, err = create(c.pd, verbs.QPConfig{SendCQ: c.cq, MaxSendWR: 4, MaxRecvWR: 4}); err != nil {
		return err
	}
	return c.recv()
}

func (c *faultConn) recv() error { return c.qp.PostRecv(verbs.Recv(1, c.mr.SGE(0, faultMessage))) }
func (c *faultConn) send() error {
	return c.qp.PostSend(verbs.Send(2, c.mr.SGE(faultMessage, faultMessage), ib.Signaled))
}

// next waits for a completion, and gives the end of the connection as an error.
func (c *faultConn) next(ctx context.Context) (verbs.WC, error) {
	wc, err := c.cq.Next(ctx)
	if err == nil && wc.Status != ib.StatusSuccess {
		if err = c.qp.Err(); err == nil {
			err = fmt.Errorf("failed completion, and the queue pair knows no cause: %w", wc.Err())
		}
	}
	return wc, err
}

// exchange sends a message and waits for its echo.
func (c *faultConn) exchange(ctx context.Context) error {
	if err := c.send(); err != nil {
		return errors.Join(c.qp.Err(), err)
	}
	for left := 2; left > 0; left-- {
		short, cancel := context.WithTimeout(ctx, time.Second)
		wc, err := c.next(short)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			// No echo: ask again, as whoever only waits never learns that his peer is gone.
			if err = c.send(); errors.Is(err, verbs.ErrQueueFull) {
				err = nil
			}
			left++
			if err == nil {
				continue
			}
			err = errors.Join(c.qp.Err(), err)
		}
		if err != nil {
			return err
		}
		if wc.Opcode.IsRecv() {
			if err := c.recv(); err != nil {
				return errors.Join(c.qp.Err(), err)
			}
		}
	}
	return nil
}

func (c *faultConn) close() error {
	var errs []error
	if c.cq != nil {
		errs = append(errs, c.cq.Close())
	}
	if c.mr != nil {
		errs = append(errs, c.mr.Close())
	}
	if c.pd != nil {
		errs = append(errs, c.pd.Close())
	}
	return errors.Join(errs...)
}

func (r *faultRun) param() *cm.ConnParam {
	return &cm.ConnParam{AckTimeout: r.o.Timeout, RetryCount: r.o.Retries}
}

// cycle makes a connection and lives until it ends. The error is that of the end.
func (r *faultRun) cycle(ctx context.Context) error {
	limit := r.o.Limit
	if limit == 0 {
		limit = 20 * time.Second
	}
	making, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	route, err := cm.Resolve(making, r.p, r.o.Dial, nil)
	if err != nil {
		return err
	}
	defer route.Close()
	r.observe(ctx, route.Device())
	r.bystand(ctx, route.Device())
	var c faultConn
	defer func() {
		if err := c.close(); err != nil {
			r.say("close %s: %v", faultClass(err), err)
		}
	}()
	if err := c.open(route.Device(), route.CreateQP); err != nil {
		return err
	}
	conn, err := route.Connect(making, r.param())
	if err != nil {
		return err
	}
	defer func() {
		if err := conn.Close(); err != nil {
			r.say("close %s: %v", faultClass(err), err)
		}
	}()
	if r.o.Idle {
		r.say("connected")
		_, err := c.next(ctx)
		return err
	}
	for n := 0; ; n++ {
		if err := c.exchange(ctx); err != nil {
			return err
		}
		if n == 0 {
			r.say("connected")
		}
	}
}

// again makes a connection of this process to itself, as soon as there is a device for it.
func (r *faultRun) again(ctx context.Context, addr string, live func(*faultConn) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		made, _, err := r.toItself(ctx, addr, live)
		if made || err == nil {
			return err
		}
		r.say("not yet %s: %v", faultClass(err), err)
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// selfCycles connects to itself, exchanges messages until that ends, and begins anew.
func (r *faultRun) selfCycles(ctx context.Context) error {
	for range r.o.Cycles {
		err := r.again(ctx, r.o.Self, func(c *faultConn) error {
			for {
				if err := c.exchange(ctx); err != nil {
					return err
				}
			}
		})
		r.say("ended %s: %v", faultClass(err), err)
		r.used()
	}
	return nil
}

// pin registers memory, and says what it could have.
func (r *faultRun) pin() error {
	d, err := verbs.Open(r.p, faultRXE)
	if err != nil {
		return err
	}
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	for n := r.o.Pin; n >= os.Getpagesize(); n /= 2 {
		mr, err := pd.Alloc(n, ib.LocalWrite)
		if err == nil {
			r.say("pinned %d", n)
			return mr.Close()
		}
		r.say("not pinned %s: %v", faultClass(err), err)
	}
	return errors.New("not even a page")
}

// toItself makes a connection to itself and lets it live. made: there was one. served is how
// the other side ended.
func (r *faultRun) toItself(ctx context.Context, addr string, live func(*faultConn) error) (made bool, served, err error) {
	l, err := cm.Listen(r.p, addr, nil)
	if err != nil {
		return false, nil, err
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			err = r.serveOne(ctx, req)
		}
		done <- err
	}()
	err = func() error {
		route, err := cm.Resolve(ctx, r.p, addr, nil)
		if err != nil {
			return err
		}
		defer route.Close()
		r.observe(ctx, route.Device())
		var c faultConn
		defer c.close()
		if err := c.open(route.Device(), route.CreateQP); err != nil {
			return err
		}
		conn, err := route.Connect(ctx, r.param())
		if err != nil {
			return err
		}
		defer conn.Close()
		made = true
		return live(&c)
	}()
	l.Close()
	served = <-done
	return made, served, err
}

// serve echoes messages, and says how connections end.
func (r *faultRun) serve(ctx context.Context) error {
	l, err := cm.Listen(r.p, r.o.Serve, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	r.say("ready %v", l.Addr())
	for n := 0; ; n++ {
		req, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			r.say("ended %s: %v", faultClass(err), err)
			return nil
		}
		err = r.serveOne(ctx, req)
		if ctx.Err() != nil {
			return nil
		}
		r.say("ended %s: %v", faultClass(err), err)
		r.used()
	}
}

func (r *faultRun) serveOne(ctx context.Context, req *cm.Request) (err error) {
	defer req.Close()
	r.observe(ctx, req.Device())
	var c faultConn
	defer func() {
		if err := c.close(); err != nil {
			r.say("close %s: %v", faultClass(err), err)
		}
	}()
	if err := c.open(req.Device(), req.CreateQP); err != nil {
		return err
	}
	conn, err := req.Accept(ctx, r.param())
	if err != nil {
		return err
	}
	defer conn.Close()
	r.say("connected")
	for {
		wc, err := c.next(ctx)
		if err != nil {
			return err
		}
		if !wc.Opcode.IsRecv() {
			continue
		}
		if err := c.recv(); err != nil {
			return errors.Join(c.qp.Err(), err)
		}
		if err := c.send(); err != nil {
			return errors.Join(c.qp.Err(), err)
		}
	}
}

// faultClass names the kind of an error, as errors.Is and errors.As tell it.
func faultClass(err error) string {
	var status *verbs.CompletionError
	var event verbs.EventError
	switch {
	case err == nil:
		return "nothing"
	case errors.Is(err, verbs.ErrDeviceGone):
		return "gone"
	case errors.As(err, &event):
		return event.Type().String()
	case errors.As(err, &status):
		return status.Status.String()
	case errors.Is(err, io.EOF):
		return "EOF"
	case errors.Is(err, syscall.ENOMEM):
		return "ENOMEM"
	case errors.Is(err, syscall.EMFILE):
		return "EMFILE"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "deadline"
	case errors.Is(err, syscall.ETIMEDOUT):
		return "ETIMEDOUT"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "ECONNREFUSED"
	}
	return fmt.Sprintf("other(%T)", err)
}

// TestFaultRole is the entry of the processes that the tests of faults start.
func TestFaultRole(t *testing.T) {
	text := os.Getenv(faultEnv)
	if text == "" {
		t.Skip("is a process of the TestGuestFault tests, not a test")
	}
	var o faultOrders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	if err := faultRole(o); err != nil {
		fmt.Printf("fault: failed %s: %v\n", faultClass(err), err)
		t.Fatal(err)
	}
	fmt.Printf("fault: done\n")
}
