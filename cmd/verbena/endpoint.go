package main

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// endpoint is one end of an rping connection: a queue pair with its memory.
type endpoint struct {
	id  *cm.ID
	qp  *verbs.QP
	q   *queue
	all bool // requests give completions that nothing needs, to be shown

	pd       *verbs.PD
	messages *verbs.MR // receives, then what is sent
	data     *verbs.MR // what the peer reads, or what was read
	target   *verbs.MR // client: what the peer writes
	sends    int
}

// Depths of the queues, as rping has them: one message is under way at a time, and
// another may come before the first is looked at.
const (
	sendDepth = 16
	recvDepth = 2
	cqDepth   = sendDepth + recvDepth

	// Every so many sends one gives a completion, which frees the room of those before.
	signalEvery = sendDepth / 2
)

// Request ids. Receives have the number of their slot.
const (
	idSend uint64 = recvDepth + iota
	idRead
	idWrite
	idProbe
)

// Slots of the message memory behind the receives.
const (
	slotData   = recvDepth + iota // client: names the source buffer
	slotTarget                    // client: names the target buffer
	slotGoOn                      // server: zeros
	slots
)

// open makes what the endpoint needs on the id's device, and posts the receives.
// client says which side it is. What was made is closed by close, also after an error.
func (ep *endpoint) open(id *cm.ID, q *queue, size int, client bool) (err error) {
	ep.id, ep.q = id, q
	if ep.pd, err = id.Device().AllocPD(); err != nil {
		return err
	}
	if ep.messages, err = ep.pd.Alloc(slots*messageLen, ib.LocalWrite); err != nil {
		return err
	}
	access := ib.LocalWrite
	if client {
		access = ib.RemoteRead
		if ep.target, err = ep.pd.Alloc(size, ib.LocalWrite|ib.RemoteWrite); err != nil {
			return err
		}
	}
	if ep.data, err = ep.pd.Alloc(size, access); err != nil {
		return err
	}
	if client {
		for slot, mr := range map[int]*verbs.MR{slotData: ep.data, slotTarget: ep.target} {
			b, err := mr.Remote(0, size).MarshalBinary()
			if err != nil {
				return err
			}
			copy(ep.slot(slot), b)
		}
	}
	ep.qp, err = id.CreateQP(ep.pd, verbs.QPConfig{
		SendCQ: q.cq, MaxSendWR: sendDepth, MaxRecvWR: recvDepth, SignalAll: ep.all, UserData: ep,
	})
	if err != nil {
		return err
	}
	for i := range recvDepth {
		if err := ep.receive(i); err != nil {
			return err
		}
	}
	return nil
}

// slot gives a message's memory.
func (ep *endpoint) slot(i int) []byte {
	return ep.messages.Bytes()[i*messageLen:][:messageLen]
}

// receive posts the receive of a slot.
func (ep *endpoint) receive(slot int) error {
	return ep.qp.PostRecv(verbs.Recv(uint64(slot), ep.messages.SGE(slot*messageLen, messageLen)))
}

// message is the request that sends a slot. The slots that are sent never change, so
// that nobody has to know when the device has read them.
func (ep *endpoint) message(slot int) verbs.SendWR {
	flags := ib.SendFlags(0)
	if ep.sends++; ep.sends%signalEvery == 0 {
		flags = ib.Signaled
	}
	return verbs.Send(idSend, ep.messages.SGE(slot*messageLen, messageLen), flags)
}

// cause says why a completion failed: what the queue pair knows, or else the status.
func (ep *endpoint) cause(wc *verbs.WC) error {
	if wc.Status == ib.StatusLocLen && wc.ID < recvDepth {
		return fmt.Errorf("it does not speak rping's protocol: a message of more than %d bytes", messageLen)
	}
	if err := ep.qp.Err(); err != nil {
		return err
	}
	return wc.Err()
}

// close ends the connection and frees everything. Nothing of the endpoint is in use
// when it returns.
func (ep *endpoint) close() error {
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	note(ep.id.Close())
	if ep.q != nil {
		note(ep.q.cq.Close())
	}
	for _, mr := range []*verbs.MR{ep.messages, ep.data, ep.target} {
		if mr != nil {
			note(mr.Close())
		}
	}
	if ep.pd != nil {
		note(ep.pd.Close())
	}
	return errors.Join(errs...)
}
