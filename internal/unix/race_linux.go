//go:build race

package unix

import "sync/atomic"

// The race detector does not see what system calls order. As in package syscall, all
// that was done before a send happens before what is done after any receive: then a
// peer of the same process that learns of a write through a socket may read what was
// written.
var ioSync atomic.Uint64

func raceRelease() { ioSync.Add(1) }
func raceAcquire() { ioSync.Load() }
