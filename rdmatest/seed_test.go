package rdmatest

import "testing"

// TestSeed: a fabric without a seed has that of the environment, and every other its own.
func TestSeed(t *testing.T) {
	t.Setenv(SeedEnv, "0x4711")
	for seed, want := range map[uint64]uint64{0: 0x4711, 5: 5} {
		if got := NewFabric(t, seed).Seed(); got != want {
			t.Errorf("seed %#x became %#x, want %#x", seed, got, want)
		}
	}
	t.Setenv(SeedEnv, "")
	if a, b := NewFabric(t, 0).Seed(), NewFabric(t, 0).Seed(); a == b || a == 0 {
		t.Errorf("seeds %#x and %#x", a, b)
	}
}
