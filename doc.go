// Package rdma is the root of Verbena: RDMA for Go programs.
//
// The package chooses where RDMA comes from (Provider). The layers below it are
// complete by themselves:
//
//   - package verbs is libibverbs with Go's habits: devices, memory, completion
//     queues, queue pairs;
//   - package cm is librdmacm with Go's habits: it finds peers, connects, listens;
//   - package ib is the vocabulary of the InfiniBand specification;
//   - package softroce is a device in pure Go, so that all of it runs anywhere;
//   - package rdmatest is for the tests of programs that use them.
//
// Sockets over RDMA, Dial and Listen, will live in this package.
package rdma
