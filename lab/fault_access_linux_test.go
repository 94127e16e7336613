package lab_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/internal/ibverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

// faultVerbena runs the tool on the other host of the network, where the kernel's device
// has not taken the UDP port. prepare is a shell script that runs before, in a mount
// namespace of its own; wrap are programs before the tool.
func faultVerbena(t *testing.T, prepare string, wrap []string, args ...string) (out string, err error) {
	t.Helper()
	all := []string{"ip", "netns", "exec", faultNS, "unshare", "-m", "sh", "-c", prepare + "\nexec \"$@\"", "sh"}
	all = append(all, wrap...)
	all = append(all, "verbena")
	cmd := exec.Command(all[0], append(all[1:], args...)...)
	b, err := cmd.CombinedOutput()
	t.Logf("%s; %v verbena %v: %v\n%s", prepare, wrap, args, err, b)
	return string(b), err
}

// hide hides the files of the kernel's RDMA, and faultFiles makes them for all users.
const (
	hide       = "mount -t tmpfs none /dev/infiniband"
	faultFiles = "for d in $(cd /sys/class && ls -d infiniband_verbs/uverbs* misc/rdma_cm); do mknod /dev/infiniband/${d#*/} c $(tr : ' ' < /sys/class/$d/dev); chmod 666 /dev/infiniband/${d#*/}; done"
)

var faultNobody = []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"}

// TestGuestFaultC016_Access: what a host may lack is named, with the way to mend it, and
// programs that do not ask for the kernel's devices get the embedded one, and why.
func TestGuestFaultC016_Access(t *testing.T) {
	faultNet(t)
	for _, c := range []struct {
		name, prepare string
		wrap          []string
		why           []string // parts of what ping says of its provider
		say           []string // parts of what devices says
		mend          bool
	}{
		{"NoFiles", hide, nil, []string{"soft: embedded device: the kernel has no RDMA device"}, []string{"the device's file is missing", "pass /dev/infiniband in"}, true},
		{"NoPermission", hide + "; for d in rdma_cm uverbs0 uverbs1; do mknod -m 600 /dev/infiniband/$d c $(cat /sys/class/*/$d/dev | head -1 | tr : ' '); done", faultNobody,
			[]string{"soft: embedded device: no active port", "permission denied"}, []string{"/dev/infiniband/uverbs", "permission denied", "chmod a+rw"}, true},
		{"NoLibrary", "mount --bind /dev/null $(readlink -f /usr/lib/*/libibverbs.so.1)", nil,
			[]string{"soft: embedded device: ibverbs: no RDMA libraries: tried libibverbs.so.1"}, []string{"no RDMA libraries", "install the libraries"}, true},
		{"NoManager", "mount --bind /dev/null $(readlink -f /usr/lib/*/librdmacm.so.1)", nil,
			[]string{"soft: embedded device: ibverbs: no connection manager: tried librdmacm.so.1"}, []string{"no connection manager: tried librdmacm.so.1", "install the libraries"}, true},
		{"NoLibraryAsNobody", "mount --bind /dev/null $(readlink -f /usr/lib/*/libibverbs.so.1)", faultNobody,
			[]string{"soft: embedded device: ibverbs: no RDMA libraries"}, []string{"install the libraries"}, true},
		{"Nobody", "true", faultNobody, nil, []string{faultRXE, "ACTIVE", "default   kernel"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := faultVerbena(t, c.prepare, c.wrap, "devices")
			if err != nil {
				t.Error(err)
			}
			for _, part := range c.say {
				if !strings.Contains(out, part) {
					t.Errorf("devices does not say %q", part)
				}
			}
			if c.mend != strings.Contains(out, "to mend: ") {
				t.Errorf("to mend: %v", !c.mend)
			}
			if out, err = faultVerbena(t, c.prepare, append([]string{"env", kernelEnv}, c.wrap...), "ping", "-n", "1"); c.why != nil && (err == nil || strings.Contains(out, "panic")) {
				t.Error("a ping with the kernel's devices succeeds")
			}
			if c.why == nil {
				return
			}
			out, err = faultVerbena(t, c.prepare, c.wrap, "ping", "-n", "2", "-interval", "0")
			if err != nil {
				t.Error(err)
			}
			for _, part := range c.why {
				if !strings.Contains(out, part) {
					t.Errorf("ping does not say %q", part)
				}
			}
		})
	}
}

// TestGuestFaultC016_Manager: a user who may use the devices but not the connection manager is told
// of its file, by what shows the devices and by what wants to connect; the embedded device works.
func TestGuestFaultC016_Manager(t *testing.T) {
	faultNet(t)
	const prepare = hide + "; " + faultFiles + "; chmod 600 /dev/infiniband/rdma_cm"
	out, err := faultVerbena(t, prepare, faultNobody, "devices")
	if err != nil || !strings.Contains(out, "to mend: /dev/infiniband/rdma_cm ") {
		t.Errorf("devices does not name the file (%v)", err)
	}
	out, err = faultVerbena(t, prepare, append([]string{"env", kernelEnv}, faultNobody...), "ping", "-n", "1")
	if err == nil || !strings.Contains(out, "/dev/infiniband/rdma_cm") || !strings.Contains(out, "permission denied") {
		t.Errorf("ping with the kernel's devices does not name the file (%v)", err)
	}
	if _, err = faultVerbena(t, prepare, append([]string{"env", "VERBENA_PROVIDER=soft"}, faultNobody...), "ping", "-n", "2", "-interval", "0"); err != nil {
		t.Errorf("ping with the embedded device: %v", err)
	}
}

// TestGuestFaultMemlock: an ordinary user with a small limit of locked memory is told of it
// when a registration is too large; small ones work, and so does ping.
func TestGuestFaultMemlock(t *testing.T) {
	faultNet(t)
	const limit = "--memlock=65536:65536"
	user := append([]string{"prlimit", limit}, faultNobody...)
	p := faultStart(t, "process", faultOrders{Pin: 1 << 20}, kernelEnv, user...)
	said := p.until(2*faultLimit, "pinned 65536")
	if !strings.Contains(said, "not pinned ENOMEM: ") || !strings.Contains(said, "RLIMIT_MEMLOCK is 64 KiB") {
		t.Errorf("a registration of 1 MiB: %s", said)
	}
	p.expect(faultLimit, "done")

	server := exec.Command(user[0], append(user[1:], "verbena", "ping", "-size", "4096", "-listen", faultHere+":7008")...) // by default it takes all that the limit allows
	server.Env = append(os.Environ(), kernelEnv)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Process.Kill(); server.Wait() })
	client := append(append([]string{}, user...), "verbena", "ping", "-n", "3", "-tcp=false", "-interval", "0", faultHere+":7008")
	for try := 0; ; try++ {
		cmd := exec.Command(client[0], client[1:]...)
		cmd.Env = append(os.Environ(), kernelEnv)
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Logf("%s", out)
			return
		}
		if try == 20 { // each takes a while; the server needs one
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

// TestGuestFaultC001_Apart: no device, no file of the connection manager, and one that may not be
// opened, are three errors, and to ask for devices is none of them.
func TestGuestFaultC001_Apart(t *testing.T) {
	inGuest(t)
	for _, c := range []struct {
		name, prepare string
		wrap          []string
		devices       string
		open, channel string
	}{
		{"NoFile", hide + "; " + faultFiles + "; rm /dev/infiniband/rdma_cm", nil, "1", "nothing", "ENOENT"},
		{"NoPermission", hide + "; " + faultFiles + "; chmod 600 /dev/infiniband/rdma_cm", faultNobody, "1", "nothing", "EACCES"},
		{"NoDevice", "true", []string{"unshare", "-n"}, "0", "ENODEV", "ENODEV"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "NoDevice" { // other network namespaces have none, if each device is in one
				sh(t, "for i in $(seq 100); do rdma system set netns exclusive && exit; sleep 0.1; done; exit 1")
				defer sh(t, "rdma system set netns shared")
			}
			wrap := append([]string{"unshare", "-m", "sh", "-c", c.prepare + "\nexec \"$@\"", "sh"}, c.wrap...)
			p := faultStart(t, "process", faultOrders{Open: true}, kernelEnv, wrap...)
			if got := p.expect(faultLimit, "devices "); got != c.devices {
				t.Errorf("devices %s, want %s", got, c.devices)
			}
			for _, x := range [][2]string{{"open ", c.open}, {"channel ", c.channel}} {
				if got := p.expect(faultLimit, x[0]); !strings.HasPrefix(got, x[1]+": ") {
					t.Errorf("%s%s, want %s", x[0], got, x[1])
				}
			}
			p.expect(faultLimit, "done")
		})
	}
}

// faultOpen says what the process finds of the kernel's RDMA.
func faultOpen(say func(string, ...any)) error {
	p, err := ibverbs.New()
	if err != nil {
		return err
	}
	all, err := p.Devices()
	if err != nil {
		return err
	}
	say("devices %d", len(all))
	_, err = verbs.Open(p, "")
	say("open %s: %v", errnoName(err), err)
	ch, err := cm.NewEventChannel(p)
	say("channel %s: %v", errnoName(err), err)
	if err == nil {
		return ch.Close()
	}
	return nil
}

func errnoName(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "nothing"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return "other"
}

// TestGuestFaultC196_PrivilegedPort: an ordinary user cannot serve on a port below 1024, and is told
// why.
func TestGuestFaultC196_PrivilegedPort(t *testing.T) {
	faultNet(t)
	p := faultStart(t, "process", faultOrders{Serve: faultHere + ":80"}, kernelEnv, faultNobody...)
	end := p.expect(faultLimit, "failed ")
	if !strings.Contains(end, "permission denied") || !strings.Contains(end, "ports below 1024 need a privilege") {
		t.Errorf("the process ended with %s", end)
	}
}
