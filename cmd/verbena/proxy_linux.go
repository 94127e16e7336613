package main

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unanswered reports whether the peer of a connection has been asked, with data or for room
// for them, and has not said anything for d: a quarter of an hour otherwise, as keep-alive is
// for connections without data on their way. TCP_USER_TIMEOUT (tcp(7)) is not this: it also
// ends a connection whose peer answers, but does not read.
func unanswered(c *net.TCPConn, d time.Duration) bool {
	rc, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var info *unix.TCPInfo
	cerr := rc.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), syscall.IPPROTO_TCP, unix.TCP_INFO) })
	if cerr != nil || err != nil {
		return false
	}
	// One question may be on its way just now.
	asked := info.Retransmits > 1 || info.Probes > 1
	return asked && time.Duration(info.Last_ack_recv)*time.Millisecond >= d
}
