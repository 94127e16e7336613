// Package rdmatest is for tests of programs that use RDMA, and of providers.
package rdmatest
