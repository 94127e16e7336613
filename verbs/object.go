package verbs

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// objectSet lists what is open.
type objectSet struct {
	mu  sync.Mutex
	seq uint64
	m   map[*object]struct{}
}

// object is what every object of a device begins with.
type object struct {
	life
	dev   *Device // nil for buffers
	name  func() string
	seq   uint64
	where string // of its creation, if that is traced
}

// begin is called once the object is complete; end destroys it.
func (o *object) begin(d *Device, name func() string, end func() error) {
	o.dev, o.name = d, name
	set := o.set()
	o.born(func() error {
		err := end()
		set.remove(o)
		if d == nil {
			return err
		}
		if e := d.drop(); err == nil {
			err = e
		}
		return err
	})
	set.add(o)
}

func (o *object) set() *objectSet {
	if o.dev != nil {
		return &o.dev.objects
	}
	return &buffers
}

// op begins a call; the error is that of a nil, zero or closed object.
func (o *object) op(name string) error {
	if o == nil || o.name == nil {
		return opError(name, nil, "", errNil)
	}
	if !o.enter() {
		return opError(name, o.dev, o.name(), ErrClosed)
	}
	return nil
}

// fail wraps the error of a call, and follows the removal of the device.
func (o *object) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	if o.dev != nil {
		o.dev.notice(err)
	}
	return opError(op, o.dev, o.name(), err)
}

// locked runs a call with the lock of the object.
func (o *object) locked(op string, mu *sync.Mutex, f func() error) error {
	if err := o.op(op); err != nil {
		return err
	}
	defer o.leave()
	mu.Lock()
	err := f()
	mu.Unlock()
	return o.fail(op, err)
}

func (s *objectSet) add(o *object) {
	if tracing() {
		o.where = caller()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = make(map[*object]struct{})
	}
	s.seq++
	o.seq = s.seq
	s.m[o] = struct{}{}
}

func (s *objectSet) remove(o *object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, o)
}

// list gives the objects in the order in which they were made.
func (s *objectSet) list() []string {
	s.mu.Lock()
	all := make([]*object, 0, len(s.m))
	for o := range s.m {
		all = append(all, o)
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *object) int { return cmp.Compare(a.seq, b.seq) })
	names := make([]string, len(all))
	for i, o := range all {
		names[i] = o.name()
		if o.closed() {
			names[i] += ", closed but in use"
		}
		if o.where != "" {
			names[i] += ", made at " + o.where
		}
	}
	return names
}

// buffers lists the buffers of the process, as they belong to no device.
var buffers objectSet

var traced atomic.Bool

var tracedByEnv = sync.OnceValue(func() bool {
	return slices.Contains(strings.Split(os.Getenv("VERBENA_DEBUG"), ","), "objects")
})

func tracing() bool { return traced.Load() || tracedByEnv() }

// TraceObjects has Objects say where each object was made that is made from now on. It
// costs a look at the stack each time. VERBENA_DEBUG=objects does the same.
func TraceObjects(on bool) { traced.Store(on) }

// caller gives the first place outside of this package.
func caller() string {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		f, more := frames.Next()
		if !strings.Contains(f.Function, "/verbena/verbs.") || strings.HasSuffix(f.File, "_test.go") {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
		if !more {
			return "unknown"
		}
	}
}

// Objects lists what is open in the process: the objects of all devices, and buffers.
// It is for tests that look for leaks.
func Objects() []string {
	var names []string
	for _, d := range allDevices() {
		for _, o := range d.objects.list() {
			names = append(names, d.info.Name+": "+o)
		}
	}
	return append(names, buffers.list()...)
}
