// Package rdma gives Go programs that use package net the speed of RDMA: Dial, Listen,
// Conn and Listener, over RDMA devices or, where there are none, over the embedded device.
//
//	ln, err := rdma.Listen("rdma", ":7471") // was net.Listen("tcp", ":7471")
//	c, err := rdma.Dial("rdma", "host:7471") // was net.Dial("tcp", "host:7471")
//
// # Connections
//
// A *Conn is a net.Conn and a *Listener a net.Listener, in all that package net says of
// them: deadlines, half close, Close that unblocks, errors that are *net.OpError with the
// errno of the system, addresses of both ends. So http.Serve, http.Transport, tls.Server
// and net/rpc take them. What differs from TCP is little, and listed in docs/streams.md.
//
// Two Verbenas speak a protocol of their own (docs/stream-protocol.md). With a C program
// that uses rsockets, or its preload library, the same calls speak rsockets version 1; the
// first message of a connection decides, and Conn.Transport tells. With
// Config.Fallback = TCPFallback, TCP takes the place of RDMA where that cannot be had, and
// one listener serves both on one port number.
//
// # Cost
//
// A connection has a queue pair and some memory, and no goroutine, thread or descriptor of
// its own. The connections of a device share a completion queue. Whoever blocks in a call
// looks after it for all others, so that a request and its answer need no other goroutine;
// one goroutine does it when nobody blocks. Memory is lent to connections that carry much,
// and taken back from those that do not. Read and Write do not allocate.
//
// Programs with their own event loop take the descriptor of Conn.FD, which is readable and
// writable exactly while TryRead and TryWrite would not give ErrWouldBlock.
//
// # Below
//
// The layers below are complete by themselves: package verbs is libibverbs with Go's
// habits, package cm is librdmacm, package ib the vocabulary of the specification, package
// softroce a device in pure Go so that all of it runs anywhere, package rdmatest a network
// in memory for the tests of programs that use them. Provider chooses where RDMA comes
// from.
package rdma
