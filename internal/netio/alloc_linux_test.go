package netio

import (
	"net/netip"
	"testing"
)

// TestAllocations: the data path takes no memory, whatever happens.
func TestAllocations(t *testing.T) {
	addrs := loopbacks
	if list, err := Interfaces(); err == nil {
	search:
		for _, ifi := range list {
			for _, ip := range ifi.Addrs {
				if ifi.Up && ip.Zone() != "" {
					addrs = append(addrs[:len(addrs):len(addrs)], netip.AddrPortFrom(ip, 0).String())
					break search
				}
			}
		}
	}
	for _, addr := range addrs {
		t.Run(addr, func(t *testing.T) {
			a, b := open(t, addr, everything), open(t, addr, everything)
			in := room(16, trainSize)
			to := b.LocalAddr()
			single := []Message{{Buf: pattern(64, 0), Addr: to, TOS: 2}}
			train := []Message{{Buf: pattern(5000, 0), Addr: to, Segment: 1000, TOS: 2}, {Buf: pattern(64, 0), Addr: to}}
			wrong := []Message{{Buf: pattern(64, 0)}}
			large := []Message{{Buf: make([]byte, 70000), Addr: to}}
			small := room(1, 10)
			for _, k := range []struct {
				name string
				f    func()
			}{
				{"one", func() { transfer(t, a, b, single, in) }},
				{"train", func() { transfer(t, a, b, train, in) }},
				{"nothing there", func() {
					if n, err := b.TryRead(in); n != 0 || err != nil {
						t.Error(n, err)
					}
				}},
				{"taken without waiting", func() {
					if n, err := a.Write(single); n != 1 || err != nil {
						t.Error(n, err)
					}
					if n, err := b.TryRead(in); n != 1 || err != nil {
						t.Error(n, err)
					}
				}},
				{"cut", func() {
					if n, err := a.Write(single); n != 1 || err != nil {
						t.Error(n, err)
					}
					if n, err := b.TryRead(small); n != 0 || err != nil {
						t.Error(n, err)
					}
				}},
				{"wrong address", func() {
					if n, err := a.Write(wrong); n != 0 || err == nil {
						t.Error(n, err)
					}
				}},
				{"too large", func() {
					if n, err := a.Write(large); n != 0 || err == nil {
						t.Error(n, err)
					}
				}},
				{"limits", func() { a.Limits() }},
			} {
				if n := testing.AllocsPerRun(100, k.f); n != 0 {
					t.Errorf("%s: %v allocations", k.name, n)
				}
			}
			// A read that parks, in a goroutine of its own.
			ping, pong := make(chan struct{}), make(chan struct{})
			go func() {
				in := room(16, trainSize)
				for range ping {
					if n, err := b.Read(in); n != 1 || err != nil {
						t.Error(n, err)
					}
					pong <- struct{}{}
				}
			}()
			if n := testing.AllocsPerRun(100, func() {
				ping <- struct{}{}
				if n, err := a.Write(single); n != 1 || err != nil {
					t.Error(n, err)
				}
				<-pong
			}); n != 0 {
				t.Errorf("parked read: %v allocations", n)
			}
			close(ping)
		})
	}
}

func transfer(t *testing.T, a, b Conn, out, in []Message) {
	if n, err := a.Write(out); n != len(out) || err != nil {
		t.Error(n, err)
	}
	for got := 0; got < len(out); {
		n, err := b.Read(in)
		if err != nil {
			t.Error(err)
			return
		}
		got += n
	}
}
