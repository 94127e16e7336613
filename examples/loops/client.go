package main

import (
	"context"
	"errors"
	"fmt"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// client asks a server that another process runs.
func client(ctx context.Context, addr, text string) error {
	p, _, err := rdma.Provider(rdma.Auto)
	if err != nil {
		return err
	}
	answer, err := ask(ctx, p, addr, text)
	if err != nil {
		return err
	}
	fmt.Println(answer)
	return nil
}

// ask sends one message and gives the answer. A client with many connections shares what is
// made here between them, as the server does.
func ask(ctx context.Context, p verbs.Provider, addr, text string) (answer string, err error) {
	if len(text) > size {
		return "", fmt.Errorf("%d bytes are more than the %d of a message", len(text), size)
	}
	route, err := cm.Resolve(ctx, p, addr, nil) // the device and the way to the server
	if err != nil {
		return "", err
	}
	defer route.Close()
	pd, err := route.Device().AllocPD()
	if err != nil {
		return "", err
	}
	defer pd.Close()
	cq, err := route.Device().CreateCQ(2, nil) // one send and one receive
	if err != nil {
		return "", err
	}
	defer cq.Close()
	mr, err := pd.Alloc(2*size, ib.LocalWrite) // the question, and the answer behind it
	if err != nil {
		return "", err
	}
	defer mr.Close()
	qp, err := route.CreateQP(pd, verbs.QPConfig{SendCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
	if err != nil {
		return "", err
	}
	if err := qp.PostRecv(verbs.Recv(1, mr.SGE(size, size))); err != nil { // before Connect
		return "", err
	}
	conn, err := route.Connect(ctx, nil)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	n := copy(mr.Bytes(), text)
	if err := qp.PostSend(verbs.Send(2, mr.SGE(0, n), ib.Signaled)); err != nil {
		return "", err
	}
	for wc, err := range cq.Completions(ctx) {
		switch {
		case err != nil: // the wait has ended: ctx
			return "", err
		case wc.Err() != nil: // the connection has ended; qp.Err says why
			return "", errors.Join(wc.Err(), qp.Err())
		case wc.Opcode.IsRecv():
			return string(mr.Bytes()[size:][:wc.ByteLen]), nil
		}
		// Sent. Only now may the question be overwritten.
	}
	return "", ctx.Err()
}
