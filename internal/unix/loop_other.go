//go:build !linux

package unix

import "time"

// Sizes and flags without a meaning here.
const (
	EpollOneshot = 1 << 30
	FDSetSize    = 1024
)

// FDSet is fd_set.
type FDSet struct{}

func (*FDSet) Zero()          {}
func (*FDSet) Set(int)        {}
func (*FDSet) IsSet(int) bool { return false }

func EpollAddKey(int, int, uint32, uint64) error { return errUnsupported }
func EpollModKey(int, int, uint32, uint64) error { return errUnsupported }
func EpollKey(*EpollEvent) uint64                { return 0 }
func Timerfd() (int, error)                      { return -1, errUnsupported }
func TimerfdSet(int, time.Duration) error        { return errUnsupported }
func Select(int, *FDSet, *FDSet, bool) (int, error) {
	return 0, errUnsupported
}
