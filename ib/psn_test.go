package ib

import "testing"

func TestPSN(t *testing.T) {
	t.Parallel()
	const top = PSNWindow * 2
	for _, p := range []PSN{0, 1, 2, 0x7FFFFF, 0x800000, 0x800001, 0xFFFFFE, 0xFFFFFF} {
		for _, n := range []int{0, 1, 2, 1000, PSNWindow - 1} {
			q := p.Add(n)
			if q > PSNMask || q != PSN((int(p)+n)%top) {
				t.Fatalf("%v + %d = %v", p, n, q)
			}
			if q.Add(-n) != p {
				t.Errorf("%v - %d = %v, want %v", q, n, q.Add(-n), p)
			}
			if q.Sub(p) != n || p.Sub(q) != -n {
				t.Errorf("%v and %v: distances %d and %d, want %d", p, q, q.Sub(p), p.Sub(q), n)
			}
			if p.Before(q) != (n > 0) || q.After(p) != (n > 0) || q.Before(p) || p.After(q) {
				t.Errorf("%v and %v, %d later: wrong order", p, q, n)
			}
			if !p.In(p, 1) || q.In(p, n) || !q.In(p, n+1) {
				t.Errorf("%v in the packets from %v on: wrong", q, p)
			}
		}
		if p.Next() != p.Add(1) || p.Next().Sub(p) != 1 {
			t.Errorf("after %v comes %v", p, p.Next())
		}
		// Half the circle away there is no order, and the distance is the negative one.
		far := p.Add(PSNWindow)
		if !far.Before(p) || !p.Before(far) || far.After(p) || far.Sub(p) != -PSNWindow {
			t.Errorf("%v and %v: %d", p, far, far.Sub(p))
		}
	}
	if p := PSN(5).Add(-7); p != 0xFFFFFE {
		t.Errorf("5 - 7 = %v", p)
	}
	if s := PSN(0x23848e).String(); s != "0x23848e" {
		t.Error(s)
	}
	// The upper byte of a number that was not masked does not matter.
	if !PSN(0xAB000001).Before(2) || PSN(0xAB000003).Sub(1) != 2 || !PSN(0xAB000001).In(0, 2) {
		t.Error("the upper byte counts")
	}
}
