package main

import (
	"net"
	"time"

	"github.com/hashicorp/raft"
	rdma "github.com/verbena-rdma/verbena"
)

// layer is the transport of raft, a listener and a dialer, over RDMA.
type layer struct{ *rdma.Listener }

// Dial is called for each connection to another node.
func (layer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return (&rdma.Dialer{Timeout: timeout}).Dial("rdma", string(address)) // was net.DialTimeout("tcp", …)
}

func listen(address string) (layer, error) {
	ln, err := rdma.Listen("rdma", address) // was net.Listen("tcp", address)
	return layer{ln}, err
}
