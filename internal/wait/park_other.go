//go:build !linux

package wait

import "errors"

func (*poller) sleep(func(uintptr) bool) (bool, error) { return false, errors.ErrUnsupported }
func (*poller) failed(uintptr) bool                    { return false }
func (*poller) interrupt()                             {}
func (*poller) resume()                                {}
