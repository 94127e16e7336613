package cm

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Driver gives the driver's id, for tests that post events.
func (id *ID) Driver() driver.CMID { return id.drv }

// Left tells what is left of the use of a provider and its device: it must be nothing
// once a test has closed all it made.
func Left(p verbs.Provider, dev *verbs.Device) (left []string) {
	table.mu.Lock()
	for _, s := range table.slots {
		if s.id != nil && s.id.p == p {
			left = append(left, fmt.Sprintf("handle of id %p", s.id))
		}
	}
	table.mu.Unlock()
	channels.mu.Lock()
	for ch := range channels.m {
		if ch.p == p {
			left = append(left, fmt.Sprintf("channel %d", ch.seq))
		}
	}
	channels.mu.Unlock()
	dispatchers.mu.Lock()
	if d := dispatchers.m[p]; d != nil {
		left = append(left, fmt.Sprintf("dispatcher with %d users", d.users))
	}
	dispatchers.mu.Unlock()
	ties.mu.Lock()
	if o := ties.devices[dev]; o != nil {
		left = append(left, fmt.Sprintf("%d queue pairs tied", o.qps))
	}
	ties.mu.Unlock()
	return left
}

// ResolveAddrs is Resolve of a name with several addresses.
func ResolveAddrs(ctx context.Context, p verbs.Provider, addrs []netip.AddrPort) (*Route, error) {
	c, err := (*Config)(nil).check(opResolveAddr)
	if err != nil {
		return nil, err
	}
	return resolve(ctx, p, addrs, &c)
}
