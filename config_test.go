package rdma_test

import (
	"errors"
	"math"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestConfigRanges: what cannot be is a *ConfigError that names the field, from both sides
// and before anything is done.
func TestConfigRanges(t *testing.T) {
	for _, c := range []struct {
		field string
		value int64
		cfg   rdma.Config
	}{
		{"SendBuf", -1, rdma.Config{SendBuf: -1}},
		{"SendBuf", 64<<20 + 1, rdma.Config{SendBuf: 64<<20 + 1}},
		{"RecvBuf", -1, rdma.Config{RecvBuf: -1}},
		{"RecvBuf", math.MaxInt64, rdma.Config{RecvBuf: math.MaxInt64}},
		{"SendQueue", -1, rdma.Config{SendQueue: -1}},
		{"SendQueue", 32769, rdma.Config{SendQueue: 32769}},
		{"RecvQueue", math.MinInt64, rdma.Config{RecvQueue: math.MinInt64}},
		{"RecvQueue", 32769, rdma.Config{RecvQueue: 32769}},
		{"Inline", 4097, rdma.Config{Inline: 4097}},
		{"Maps", -1, rdma.Config{Maps: -1}},
		{"Maps", 129, rdma.Config{Maps: 129}},
		{"HandshakeTimeout", -1, rdma.Config{HandshakeTimeout: -1}},
		{"Fallback", 2, rdma.Config{Fallback: 2}},
	} {
		_, lerr := (&rdma.ListenConfig{Config: &c.cfg}).Listen(t.Context(), "rdma", "no such host:0")
		_, derr := (&rdma.Dialer{Config: &c.cfg}).Dial("rdma", "no such host:0")
		for _, err := range []error{lerr, derr} {
			var ce *rdma.ConfigError
			var op *net.OpError
			if !errors.As(err, &ce) || ce.Field != "Config."+c.field || ce.Value != c.value || !errors.Is(err, syscall.EINVAL) || !errors.As(err, &op) {
				t.Errorf("%s %d: %v", c.field, c.value, err)
			} else if !strings.Contains(err.Error(), ce.Field) || !strings.Contains(err.Error(), ce.Want) {
				t.Errorf("%v does not say what is possible", err)
			}
		}
	}
	_, err := (&rdma.ListenConfig{Backlog: -1}).Listen(t.Context(), "rdma", ":0")
	var ce *rdma.ConfigError
	if !errors.As(err, &ce) || ce.Field != "ListenConfig.Backlog" || !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

// TestConfigLimits: the least and the greatest values that are possible carry a stream.
func TestConfigLimits(t *testing.T) {
	for name, cfg := range map[string]rdma.Config{
		"least":    {SendBuf: 1, RecvBuf: 1, SendQueue: 1, RecvQueue: 1, Inline: 1, Maps: 1},
		"greatest": {SendBuf: 64 << 20, RecvBuf: 64 << 20, SendQueue: 32768, RecvQueue: 32768, Inline: 4096, Maps: 128},
		"small":    {SendQueue: 16, RecvQueue: 32},
		"no lower": {KeepAlive: -1, Linger: -1, Inline: -1},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, l *rig) {
				l.server, l.client = withMode(cfg, l.server), withMode(cfg, l.client)
				p := l.place
				n, err := (&rdma.ListenConfig{Backlog: math.MaxInt, Config: withProvider(l.server, p.server)}).Listen(t.Context(), "rdma", l.address)
				if err != nil {
					t.Fatal(err)
				}
				defer n.Close()
				s, c := l.connect(t, n.(*rdma.Listener))
				defer closeBoth(s, c)
				done := make(chan struct{})
				go func() {
					defer close(done)
					writes(t, c, pattern(700_000, 3))
				}()
				reads(t, s, pattern(700_000, 3))
				<-done
			})
		})
	}
}

// withMode gives cfg with the protocol of another.
func withMode(cfg, of rdma.Config) rdma.Config {
	cfg.Compatible = of.Compatible
	return cfg
}

func withProvider(cfg rdma.Config, p driver.Provider) *rdma.Config {
	cfg.Provider = p
	return &cfg
}

// TestC297_UnmapAfterClose: who has closed has its memory back, and says net.ErrClosed,
// whether it was mapped or not; while the connection lives what is not mapped is EINVAL.
func TestC297_UnmapAfterClose(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		l.server.Maps = 2
		s, c := l.pair(t)
		mr, err := c.PD().Alloc(4096, ib.LocalWrite|ib.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		other, err := c.PD().Alloc(4096, ib.LocalWrite|ib.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Map(mr, 0); err != nil {
			t.Fatal(err)
		}
		isErr(t, "not mapped", c.Unmap(other), syscall.EINVAL)
		isErr(t, "nil", c.Unmap(nil), syscall.EINVAL)
		closeBoth(s, c)
		for _, x := range []func() error{
			func() error { return c.Unmap(mr) },
			func() error { return c.Unmap(other) },
			func() error { return c.Unmap(nil) },
			func() error { _, err := c.Map(mr, 0); return err },
			func() error { _, err := c.MapWrite([]byte("x"), 0); return err },
		} {
			var op *net.OpError
			if err := x(); !errors.Is(err, net.ErrClosed) || !errors.As(err, &op) {
				t.Error(err)
			}
		}
		for _, m := range []interface{ Close() error }{mr, other} {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
	})
}
