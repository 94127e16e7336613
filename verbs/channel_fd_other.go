//go:build !linux

package verbs

import "github.com/verbena-rdma/verbena/verbs/driver"

// channelFD is what CompChannel.FD and AsyncEvents.FD give: the provider's descriptor. Events that the
// library makes do not show in it.
type channelFD struct{}

func (*channelFD) open(d driver.Notifier, _ bool) (int, error) { return d.FD() }
func (*channelFD) raise()                                      {}
func (*channelFD) lower()                                      {}
func (*channelFD) close()                                      {}
