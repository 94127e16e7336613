package transport

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
)

// request describes the operations that can be posted to a reliable connection.
type request struct {
	first, middle, last, only wire.Opcode
	wc                        ib.WCOpcode
	ok                        bool
	reads                     bool // waits for a response of its own: READ, atomics
	writes                    bool // writes to its local memory
}

// ofKeys reports whether an operation changes keys of this side and sends nothing.
func ofKeys(o ib.Opcode) bool { return o == ib.OpLocalInv || o == ib.OpBindMW }

// requests has one entry for each ib.Opcode; LOCAL_INV and BIND_MW send no packet.
var requests = [16]request{
	ib.OpSend:        {wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendOnly, ib.WCSend, true, false, false},
	ib.OpSendImm:     {wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLastImm, wire.RCSendOnlyImm, ib.WCSend, true, false, false},
	ib.OpSendInv:     {wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLastInv, wire.RCSendOnlyInv, ib.WCSend, true, false, false},
	ib.OpWrite:       {wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast, wire.RCWriteOnly, ib.WCWrite, true, false, false},
	ib.OpWriteImm:    {wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLastImm, wire.RCWriteOnlyImm, ib.WCWrite, true, false, false},
	ib.OpRead:        {wire.RCReadRequest, wire.RCReadRequest, wire.RCReadRequest, wire.RCReadRequest, ib.WCRead, true, true, true},
	ib.OpCompareSwap: {only: wire.RCCompareSwap, wc: ib.WCCompareSwap, ok: true, reads: true, writes: true},
	ib.OpFetchAdd:    {only: wire.RCFetchAdd, wc: ib.WCFetchAdd, ok: true, reads: true, writes: true},
	ib.OpLocalInv:    {wc: ib.WCLocalInv, ok: true},
	ib.OpBindMW:      {wc: ib.WCBindMW, ok: true},
}
