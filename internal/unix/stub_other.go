//go:build !linux

package unix

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
)

var errUnsupported = fmt.Errorf("not on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// Conditions, protections and advice; their values mean nothing here.
const (
	PollIn = 1 << iota
	PollOut
	PollErr
	PollHup
	PollNul

	ProtNone      = 0
	ProtRead      = 1
	ProtReadWrite = 3

	AdviseDontFork = 1
	AdviseDoFork   = 2
	AdviseDontNeed = 3
	AdvisePopulate = 4
)

// PollFD is struct pollfd.
type PollFD struct {
	Fd      int32
	Events  int16
	Revents int16
}

// EpollEvent is struct epoll_event.
type EpollEvent struct {
	Events uint32
	Fd     int32
}

func Eventfd() (int, error)                { return -1, errUnsupported }
func EventfdSignal(int) error              { return errUnsupported }
func EventfdDrain(int) (uint64, error)     { return 0, errUnsupported }
func Dup(int) (int, error)                 { return -1, errUnsupported }
func SetNonblock(int, bool) error          { return errUnsupported }
func Close(int) error                      { return errUnsupported }
func Read(int, []byte) (int, error)        { return 0, errUnsupported }
func Write(int, []byte) (int, error)       { return 0, errUnsupported }
func Mprotect([]byte, int) error           { return errUnsupported }
func Madvise([]byte, int) error            { return errUnsupported }
func MmapHuge(int) ([]byte, error)         { return nil, errUnsupported }
func MemlockLimit() (uint64, error)        { return 0, errUnsupported }
func EpollCreate() (int, error)            { return -1, errUnsupported }
func EpollAdd(int, int, uint32) error      { return errUnsupported }
func EpollMod(int, int, uint32) error      { return errUnsupported }
func EpollDel(int, int) error              { return errUnsupported }
func PageSize() int                        { return os.Getpagesize() }
func Mmap(n int, prot int) ([]byte, error) { return nil, errUnsupported }
func Munmap([]byte) error                  { return errUnsupported }
func Poll([]PollFD, time.Duration) (int, error) {
	return 0, errUnsupported
}
func EpollWait(int, []EpollEvent, time.Duration) (int, error) {
	return 0, errUnsupported
}

// Yield does nothing.
func Yield() {}
