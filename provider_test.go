package rdma_test

import (
	"errors"
	"strings"
	"testing"

	rdma "github.com/verbena-rdma/verbena"
)

// C-015: what is forced and impossible is an error, never a silent fallback.
func TestProvider_C015(t *testing.T) {
	for _, c := range []struct {
		env    string
		choice rdma.Choice
		name   string // of the provider, or
		text   string // of the error
	}{
		{"", rdma.Auto, "soft", ""},
		{"auto", rdma.Auto, "soft", ""},
		{"soft", rdma.Auto, "soft", ""},
		{"kernel", rdma.Auto, "", "kernel devices"},
		{"nonsense", rdma.Auto, "", "use kernel, soft or auto"},
		{"nonsense", rdma.Soft, "soft", ""},
		{"soft", rdma.Kernel, "", "kernel devices"},
		{"", rdma.Choice(9), "", "Choice(9)"},
	} {
		t.Setenv(rdma.EnvProvider, c.env)
		p, why, err := rdma.Provider(c.choice)
		switch {
		case c.text != "":
			if err == nil || !strings.Contains(err.Error(), c.text) || p != nil {
				t.Errorf("%q, %v: provider %v, error %v, want one that says %q", c.env, c.choice, p, err, c.text)
			}
		case err != nil:
			t.Errorf("%q, %v: %v", c.env, c.choice, err)
		case p.Name() != c.name || why == "":
			t.Errorf("%q, %v: %s because %q, want %s", c.env, c.choice, p.Name(), why, c.name)
		}
	}
	if !errors.Is(rdma.ErrNoKernelProvider, errors.ErrUnsupported) {
		t.Error("ErrNoKernelProvider does not wrap errors.ErrUnsupported")
	}
	t.Setenv(rdma.EnvProvider, "")
	a, _, errA := rdma.Provider(rdma.Soft)
	b, _, errB := rdma.Provider(rdma.Auto)
	if errA != nil || errB != nil || a != b {
		t.Errorf("two calls gave %v, %v and %v, %v, want one provider", a, errA, b, errB)
	}
}
