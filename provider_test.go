package rdma_test

import (
	"errors"
	"strings"
	"testing"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/internal/ibverbs"
)

// C-015: what is forced and impossible is an error, never a silent fallback. The
// machine may have the libraries of kernel devices, or devices, or neither.
func TestProvider_C015(t *testing.T) {
	auto := "soft"
	k, missing := ibverbs.New()
	if missing == nil {
		if active, _ := k.Active(); active {
			auto = "kernel"
		}
	}
	for _, c := range []struct {
		env    string
		choice rdma.Choice
		name   string // of the provider, or
		text   string // of the error
	}{
		{"", rdma.Auto, auto, ""},
		{"auto", rdma.Auto, auto, ""},
		{"soft", rdma.Auto, "soft", ""},
		{"kernel", rdma.Auto, "kernel", ""},
		{"nonsense", rdma.Auto, "", "use kernel, soft or auto"},
		{"nonsense", rdma.Soft, "soft", ""},
		{"soft", rdma.Kernel, "kernel", ""},
		{"", rdma.Choice(9), "", "Choice(9)"},
	} {
		if c.name == "kernel" && missing != nil {
			c.name, c.text = "", "ibverbs: "
		}
		t.Setenv(rdma.EnvProvider, c.env)
		p, why, err := rdma.Provider(c.choice)
		switch {
		case c.text != "":
			if err == nil || !strings.Contains(err.Error(), c.text) || p != nil {
				t.Errorf("%q, %v: provider %v, error %v, want one that says %q", c.env, c.choice, p, err, c.text)
			}
			if c.text == "ibverbs: " && !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%q, %v: %v is not errors.ErrUnsupported", c.env, c.choice, err)
			}
		case err != nil:
			t.Errorf("%q, %v: %v", c.env, c.choice, err)
		case p.Name() != c.name || why == "":
			t.Errorf("%q, %v: %s because %q, want %s", c.env, c.choice, p.Name(), why, c.name)
		}
	}
	t.Setenv(rdma.EnvProvider, "")
	a, _, errA := rdma.Provider(rdma.Soft)
	b, _, errB := rdma.Provider(rdma.Soft)
	if errA != nil || errB != nil || a != b {
		t.Errorf("two calls gave %v, %v and %v, %v, want one provider", a, errA, b, errB)
	}
}
