package cm_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	depth = 16   // receives kept posted
	size  = 4096 // of a message, at most
)

// An echo server and its client: messages of SEND and RECV, one goroutine for each
// connection. It runs on the embedded device, over loopback, if there is no other.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, _, err := rdma.Provider(rdma.Soft) // rdma.Auto takes what the host has
	if err != nil {
		log.Fatal(err)
	}
	ln, err := cm.Listen(p, "127.7.4.71:0", nil) // an address of its own: one process has 127.0.0.1
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()
	served := make(chan error, 1)
	go func() {
		req, err := ln.Accept(ctx)
		if err != nil {
			served <- err
			return
		}
		served <- echo(ctx, req)
	}()
	answer, err := ask(ctx, p, ln.Addr().String(), "hello")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer)
	fmt.Println(<-served)
	// Output:
	// hello
	// EOF
}

// resources are what a connection works with; a real server shares them between all
// connections of a device.
type resources struct {
	pd *verbs.PD
	cq *verbs.CQ
	mr *verbs.MR
}

func open(dev *verbs.Device) (r resources, err error) {
	if r.pd, err = dev.AllocPD(); err != nil {
		return r, err
	}
	if r.cq, err = dev.CreateCQ(2*depth, nil); err != nil {
		return r, err
	}
	r.mr, err = r.pd.Alloc(depth*size, ib.LocalWrite)
	return r, err
}

// close may come in any order, and before or after that of the queue pair.
func (r resources) close() {
	r.mr.Close()
	r.cq.Close()
	r.pd.Close()
}

func (r resources) slot(id uint64, n int) verbs.SGE { return r.mr.SGE(int(id)*size, n) }

// config of the queue pairs of both sides.
func (r resources) config() verbs.QPConfig {
	return verbs.QPConfig{SendCQ: r.cq, MaxSendWR: depth, MaxRecvWR: depth}
}

// echo answers each message with itself, until the peer disconnects: io.EOF.
func echo(ctx context.Context, req *cm.Request) error {
	defer req.Close() // rejects, unless accepted
	r, err := open(req.Device())
	if err != nil {
		return err
	}
	defer r.close()
	qp, err := req.CreateQP(r.pd, r.config())
	if err != nil {
		return err
	}
	for id := range uint64(depth) { // before Accept: the peer may send at once
		if err := qp.PostRecv(verbs.Recv(id, r.slot(id, size))); err != nil {
			return err
		}
	}
	conn, err := req.Accept(ctx, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	for wc, err := range r.cq.Completions(ctx) {
		switch {
		case err != nil: // the wait ended
			return err
		case wc.Err() != nil: // the connection ended; io.EOF is the peer
			return qp.Err()
		case wc.Opcode.IsRecv(): // send it back from where it lies
			err = qp.PostSend(verbs.Send(wc.ID, r.slot(wc.ID, int(wc.ByteLen)), ib.Signaled))
		default: // sent: the slot is free for the next message
			err = qp.PostRecv(verbs.Recv(wc.ID, r.slot(wc.ID, size)))
		}
		if err != nil {
			return err
		}
	}
	return io.ErrUnexpectedEOF
}

// ask sends one message and gives the answer.
func ask(ctx context.Context, p verbs.Provider, addr, text string) (string, error) {
	route, err := cm.Resolve(ctx, p, addr, nil) // now the device is known
	if err != nil {
		return "", err
	}
	defer route.Close()
	r, err := open(route.Device())
	if err != nil {
		return "", err
	}
	defer r.close()
	qp, err := route.CreateQP(r.pd, r.config())
	if err != nil {
		return "", err
	}
	if err := qp.PostRecv(verbs.Recv(0, r.slot(0, size))); err != nil {
		return "", err
	}
	conn, err := route.Connect(ctx, nil)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	n := copy(r.mr.Bytes()[size:], text)
	if err := qp.PostSend(verbs.Send(1, r.slot(1, n), ib.Signaled)); err != nil {
		return "", err
	}
	for wc, err := range r.cq.Completions(ctx) {
		switch {
		case err != nil:
			return "", err
		case wc.Err() != nil:
			return "", qp.Err()
		case wc.Opcode.IsRecv():
			return string(r.mr.Bytes()[:wc.ByteLen]), nil
		}
	}
	return "", io.ErrUnexpectedEOF
}
