package lab_test

import (
	"maps"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// differences are where a device does not behave as the standard says, and as the embedded
// device does: what it gives instead at points of tests, and what it lacks, always or on some
// runs. Each was measured; an entry that is not needed any more fails the suite.
type differences struct {
	accept          map[string][]ib.Status
	known, unsteady map[string]string
}

// put writes the differences into the options of a run.
func (d differences) put(o *rdmatest.ConformanceOptions) *rdmatest.ConformanceOptions {
	o.Accept, o.Known, o.Unsteady = d.accept, d.known, d.unsteady
	return o
}

// profile gives the differences of the Soft-RoCE of a kernel.
func profile(kernel string) differences {
	d := differences{maps.Clone(allKernels.accept), maps.Clone(allKernels.known), maps.Clone(allKernels.unsteady)}
	maps.Copy(d.accept, byKernel[kernel].accept)
	maps.Copy(d.known, byKernel[kernel].known)
	maps.Copy(d.unsteady, byKernel[kernel].unsteady)
	return d
}

// one is a list of one status; nothing says that no completion comes.
func one(s ib.Status) []ib.Status { return []ib.Status{s} }

var nothing = []ib.Status{}

const noQPEvents = "rxe raises no event of a queue pair but SQ_DRAINED, and on 6.12 LAST_WQE_REACHED"

// allKernels is what rdma_rxe of Linux 6.1 and of 6.12 have in common.
var allKernels = differences{
	accept: map[string][]ib.Status{
		"C-119/receiver":   one(ib.StatusLocQPOp),
		"C-119/sender":     one(ib.StatusRemOp),
		"C-121/key":        one(ib.StatusLocQPOp),
		"C-121/range":      one(ib.StatusLocQPOp),
		"C-121/right":      one(ib.StatusLocQPOp),
		"C-131/sender":     one(ib.StatusRetryExc), // the transport timer runs while it waits for the peer's receive
		"C-137/high-upper": one(ib.StatusSuccess),  // a duplicate is acknowledged with number -1 if none was taken before, which counts as later
		"C-143/sender":     nothing,                // retry_cnt 7 is without end
		"C-154/own":        nothing,                // it does not know that a Q_Key with the top bit stands for the sender's own
		"C-172/receiver":   one(ib.StatusLocQPOp),
		"C-172/sender":     one(ib.StatusRemOp),
		"C-174/outside":    one(ib.StatusSuccess), // the bounds of a window are those of its region
	},
	known: map[string]string{
		"C-176_KeyOfCompletion":      "rxe gives the flag of an invalidated key the number that it has inside the kernel",
		"C-185_AccessError":          noQPEvents,
		"C-185_Established":          noQPEvents,
		"C-185_RequestError":         noQPEvents,
		"C-238_SolicitedSendError":   "rxe does not fire a solicited-only arming for a failed send",
		"C-323_KeysAreUnpredictable": "rxe makes keys of an index and 8 random bits",
	},
	unsteady: map[string]string{
		"C-186_CQError": "rxe raises a CQ_ERR for each completion that is lost, until the library has made the queue pair fail",
	},
}

// byKernel is what only one of them does.
var byKernel = map[string]differences{
	"6.1": {
		accept: map[string][]ib.Status{
			"C-076/receiver": one(ib.StatusSuccess), // packets larger than the path MTU of the queue pair are taken
			"C-076/sender":   one(ib.StatusSuccess),
			"C-120/key":      one(ib.StatusLocQPOp),
			"C-155/next":     one(ib.StatusWRFlush), // and the queue pair fails
			"C-155/small":    one(ib.StatusLocQPOp),
		},
		known: map[string]string{
			"C-171_LastWQE":       noQPEvents,
			"C-171_LastWQEByPeer": noQPEvents,
		},
	},
	"6.12": {
		accept: map[string][]ib.Status{ // a request that fails by itself is flushed with all others
			"C-120/key":      one(ib.StatusWRFlush),
			"C-076/receiver": one(ib.StatusRemInvReq),
			"C-120/range":    one(ib.StatusWRFlush),
			"C-155/next":     nothing, // what does not fit is lost, and the receive stays
			"C-155/small":    nothing,
			"C-175/bound":    {ib.StatusMWBind, ib.StatusWRFlush}, // or not, on some runs
			"C-177/local":    {ib.StatusLocQPOp, ib.StatusWRFlush},
		},
	},
}
