//go:build !linux

package wait

import "context"

// napFDs does not exist here: no notifier has a descriptor.
type napFDs struct{}

func (*Parker) doze(context.Context) (Wake, bool, error) { return Kicked, false, nil }
func (*napFDs) rouse()                                   {}
func (*nap) close()                                      {}
