//go:build !linux

package wait

import "context"

// napSystem does not exist here: no notifier has a descriptor.
type napSystem struct{}

func (*Parker) doze(context.Context) (Wake, bool, error) { return Kicked, false, nil }
func (*napSystem) rouse()                                {}
func (*napSystem) close()                                {}
