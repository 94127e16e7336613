package softroce

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// neighbours makes two connected ends in one process, over the socket that they share.
func neighbours(t testing.TB, p *Provider) (a, b *end) {
	t.Helper()
	a, err := newEnd(p, 1<<20, 128)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = newEnd(p, 1<<20, 128); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{a.join(b.meeting()), b.join(a.meeting())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

// Post, send, receive, complete, arm, wait: nothing of it allocates, on either side.
func TestDataPathDoesNotAllocate(t *testing.T) {
	p := newProvider(t, nil)
	a, b := neighbours(t, p)
	m := b.meeting()
	for range 8 {
		b.recv()
	}
	round := func() {
		if err := a.send(64, ib.Signaled); err != nil {
			t.Fatal(err)
		}
		if _, err := b.next(); err != nil {
			t.Fatal(err)
		}
		if err := b.recv(); err != nil {
			t.Fatal(err)
		}
		if _, err := a.next(); err != nil {
			t.Fatal(err)
		}
		if err := a.write(&m, 20_000, ib.Signaled); err != nil {
			t.Fatal(err)
		}
		if _, err := a.next(); err != nil {
			t.Fatal(err)
		}
		for range 4 { // with nothing there
			a.cq.Poll()
			a.ch.Next()
		}
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(500, round); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
	// In the error state requests complete at once.
	if err := a.qp.Modify(&driver.QPAttr{State: ib.StateError}, ib.AttrState); err != nil {
		t.Fatal(err)
	}
	flushed := func() {
		if err := a.send(64, ib.Signaled); err != nil {
			t.Fatal(err)
		}
		if w, _ := a.next(); w == nil || w.Status != ib.StatusWRFlush {
			t.Fatalf("%+v", w)
		}
	}
	flushed()
	if n := testing.AllocsPerRun(500, flushed); n != 0 {
		t.Errorf("%v allocations in the error state", n)
	}
	a.qp.Close()
	if n := testing.AllocsPerRun(100, func() {
		if _, err := a.qp.CommitSend(1); err == nil {
			t.Error("post to a closed queue pair")
		}
	}); n != 0 {
		t.Errorf("%v allocations after Close", n)
	}
}

// A queue pair with queues of 128 takes no more than 64 KiB.
func TestQueuePairMemory(t *testing.T) {
	const n, limit = 200, 64 << 10
	ctx := open(t, newProvider(t, nil))
	pd, err := ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	c, err := ctx.CreateCQ(driver.CQConfig{Entries: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	qs := make([]driver.QP, n)
	var m0, m1 runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m0)
	for i := range qs {
		if qs[i], err = pd.CreateQP(driver.QPConfig{
			Type: ib.RC, SendCQ: c, RecvCQ: c,
			Cap: driver.Caps{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
		}); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&m1)
	each := int64(m1.HeapAlloc-m0.HeapAlloc) / n
	t.Logf("a queue pair takes %d bytes", each)
	if each > limit {
		t.Errorf("%d bytes, want at most %d", each, limit)
	}
	for _, q := range qs {
		q.Close()
	}
}

// An idle device with an open address and a connected queue pair takes no more than
// 8 MiB of memory beyond a program without one, and no processor time.
func TestIdleDevice(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the memory of a process is read from /proc, which only Linux has")
	}
	t.Parallel()
	measure := func(role string) (rss, ticks int) {
		p := startPeer(t, role)
		m, err := p.hear()
		if err != nil {
			t.Fatal(err)
		}
		if role == "idle" {
			// Connected to an address where nobody is.
			if err := p.tell(meeting{Addr: netip.AddrFrom4([4]byte{127, 9, 9, 9}), QPN: m.QPN, Buffer: 1 << 20}); err != nil {
				t.Fatal(err)
			}
			if _, err := p.hear(); err != nil {
				t.Fatal(err)
			}
		}
		pid := p.cmd.Process.Pid
		time.Sleep(200 * time.Millisecond) // what start-up leaves behind settles
		before := cpuTicks(t, pid)
		time.Sleep(300 * time.Millisecond)
		return residentKiB(t, pid), cpuTicks(t, pid) - before
	}
	empty, _ := measure("empty")
	idle, ticks := measure("idle")
	t.Logf("resident: %d KiB without a device, %d KiB with", empty, idle)
	if idle-empty > 8<<10 {
		t.Errorf("the device takes %d KiB", idle-empty)
	}
	if ticks > 1 { // of 30
		t.Errorf("%d ticks of processor time while idle", ticks)
	}
}

func residentKiB(t *testing.T, pid int) (n int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "VmRSS:")
	if _, err := fmt.Sscan(rest, &n); !ok || err != nil {
		t.Fatal(err)
	}
	return n
}

// cpuTicks gives user and system time in hundredths of a second.
func cpuTicks(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')'):]))
	var user, system int
	if _, err := fmt.Sscan(f[12], &user); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(f[13], &system); err != nil {
		t.Fatal(err)
	}
	return user + system
}

// C-304: what a device opens and starts goes with it.
func TestProviderLeavesNothing(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("descriptors are counted in /proc, which only Linux has")
	}
	count := func() (fds, goroutines int) {
		es, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(es), runtime.NumGoroutine()
	}
	cycle := func() {
		p, err := New(nil)
		if err != nil {
			t.Fatal(err)
		}
		a, b := neighbours(t, p)
		if _, err := a.ch.FD(); err != nil {
			t.Fatal(err)
		}
		if _, err := a.ctx.Async().FD(); err != nil {
			t.Fatal(err)
		}
		b.recv()
		if err := a.send(64, ib.Signaled); err != nil {
			t.Fatal(err)
		}
		if _, err := b.next(); err != nil {
			t.Fatal(err)
		}
		for _, e := range []*end{a, b} {
			e.qp.Close()
			e.cq.Close()
			e.ch.Close()
			e.ctx.Close()
		}
		p.Close()
	}
	cycle()
	fds, gs := count()
	for range 20 {
		cycle()
	}
	fds1, gs1 := count()
	for range 1000 {
		if gs1 <= gs {
			break
		}
		runtime.Gosched() // a timer's goroutine may be about to end
		_, gs1 = count()
	}
	if fds1 > fds || gs1 > gs {
		t.Errorf("descriptors %d, were %d; goroutines %d, were %d", fds1, fds, gs1, gs)
	}
}
