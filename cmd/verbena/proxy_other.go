//go:build !linux

package main

import (
	"net"
	"time"
)

// setUserTimeout: the system's own limit holds.
func setUserTimeout(*net.TCPConn, time.Duration) error { return nil }
