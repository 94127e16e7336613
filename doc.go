// Package rdma gives Go programs the speed of RDMA.
package rdma
