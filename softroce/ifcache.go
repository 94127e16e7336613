package softroce

import (
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/internal/netio"
)

// interfaceAge is how old a list of interfaces may be. Each connection that is made looks
// at it several times, and to ask the kernel is half of its cost.
const interfaceAge = 5 * time.Millisecond

// freshInterfaces gives a function that lists the interfaces, and asks the system if the
// last answer is older than interfaceAge. The lists are shared: they are not to be changed.
func freshInterfaces(ask func() ([]netio.Interface, error)) func() ([]netio.Interface, error) {
	var mu sync.Mutex
	var last []netio.Interface
	var at time.Time
	return func() ([]netio.Interface, error) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); last == nil || now.Sub(at) > interfaceAge || now.Before(at) {
			ifs, err := ask()
			if err != nil {
				return nil, err
			}
			last, at = ifs, time.Now()
		}
		return last, nil
	}
}
