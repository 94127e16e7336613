package rdmatest_test

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// Children that are executed while traffic runs inherit no descriptor of ours, and
// disturb nothing.
func TestC258_Exec(t *testing.T) {
	rdmatest.CheckLeaks(t)
	ls, err := exec.LookPath("ls")
	if err != nil {
		t.Fatal(err)
	}
	addr := netio.PrivateLoopback(42)
	p, err := softroce.New(&softroce.Config{Addrs: []netip.Addr{addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	shared, err := verbs.Open(p, "")
	if err != nil {
		t.Fatal(err)
	}
	dev, err := shared.Info().OpenPrivate() // so that its descriptor goes with it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	children := 200
	if testing.Short() {
		children = 20
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	qp := joinItself(t, dev)
	ours := map[int]string{}
	ch, err := cm.NewEventChannel(p)
	if err != nil {
		t.Fatal(err)
	}
	defer ch.Close()
	comp, err := qp.SendCQ().Channel()
	if err != nil {
		t.Fatal(err)
	}
	for what, f := range map[string]func() (int, error){"CM channel": ch.FD, "completion channel": comp.FD, "async": dev.Async().FD} {
		fd, err := f()
		if err != nil {
			t.Fatal(err)
		}
		ours[fd] = what
	}
	for fd, what := range ours {
		info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`(?m)^flags:\s+([0-7]+)$`).FindSubmatch(info)
		flags, err := strconv.ParseUint(string(m[1]), 8, 64)
		if err != nil || flags&0o2000000 == 0 { // O_CLOEXEC
			t.Errorf("%s: descriptor %d is inherited: flags %#o, %v", what, fd, flags, err)
		}
	}
	sent := 0
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := pingSelf(ctx, qp); err != nil {
				done <- err
				return
			}
			sent++
		}
	}()
	for range children {
		out, err := exec.Command(ls, "-l", "/proc/self/fd").Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(out) {
			if s := string(line); strings.Contains(s, "socket:") || strings.Contains(s, "eventfd") || strings.Contains(s, "eventpoll") || strings.Contains(s, "infiniband") {
				t.Errorf("a child has %s", s)
			}
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if sent == 0 {
		t.Error("no message went round meanwhile")
	}
}

// joinItself gives a queue pair connected to itself with 64 bytes of memory as its
// user data.
func joinItself(t *testing.T, dev *verbs.Device) *verbs.QP {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pd, err := dev.AllocPD()
	must(err)
	t.Cleanup(func() { pd.Close() })
	cq, err := dev.CreateCQ(64, nil)
	must(err)
	t.Cleanup(func() { cq.Close() })
	mr, err := pd.Alloc(64, ib.LocalWrite)
	must(err)
	t.Cleanup(func() { mr.Close() })
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 4, UserData: mr})
	must(err)
	t.Cleanup(func() { qp.Close() })
	e, err := qp.Endpoint(1, -1)
	must(err)
	must(qp.Join(e, &verbs.PathOptions{NoReceives: true}))
	return qp
}

func pingSelf(ctx context.Context, qp *verbs.QP) error {
	mr := qp.UserData().(*verbs.MR)
	if err := qp.PostRecv(verbs.Recv(1, mr.SGE(0, 32))); err != nil {
		return err
	}
	if err := qp.PostSend(verbs.Send(2, mr.SGE(32, 32), ib.Signaled)); err != nil {
		return err
	}
	for range 2 {
		wc, err := qp.SendCQ().Next(ctx)
		if err != nil {
			return err
		}
		if err := wc.Err(); err != nil {
			return err
		}
	}
	return nil
}
