package lab_test

import "maps"

// profile gives where the Soft-RoCE of a kernel does not behave as the standard says, and
// as the embedded device does: always, and on some runs. Each was measured; an entry that
// is not needed any more fails the suite.
func profile(kernel string) (differs, unsteady map[string]string) {
	differs = maps.Clone(allKernels)
	maps.Copy(differs, byKernel[kernel])
	unsteady = maps.Clone(byTiming)
	maps.Copy(unsteady, byKernelAndTiming[kernel])
	return differs, unsteady
}

// allKernels is what rdma_rxe of Linux 6.1 and of 6.12 have in common.
var allKernels = map[string]string{
	"C-119_ShortReceive":            "rxe: LOC_QP_OP_ERR and REM_OP_ERR where the standard has LOC_LEN_ERR and REM_INV_REQ_ERR",
	"C-120_LocalKeyOnSend":          "rxe: LOC_QP_OP_ERR, on 6.12 even WR_FLUSH_ERR, where the standard has LOC_PROT_ERR",
	"C-121_LocalKeyOnReceive":       "rxe: LOC_QP_OP_ERR where the standard has LOC_PROT_ERR",
	"C-131_RNRForEver":              "rxe lets the transport timer run while it waits for the peer's receive",
	"C-154_OwnQKey":                 "rxe does not know that a Q_Key with the top bit stands for the sender's own",
	"C-155_SmallReceive":            "rxe 6.1: LOC_QP_OP_ERR and the queue pair fails, 6.12: no completion, where the standard has LOC_LEN_ERR alone",
	"C-172_ShortReceive":            "rxe: as in C-119",
	"C-174_WindowBounds":            "rxe checks an access through a window against the bounds of the region",
	"C-176_KeyOfCompletion":         "rxe gives the flag of an invalidated key the number that it has inside the kernel",
	"C-185_QueuePairEvents":         "rxe raises no event of a queue pair but SQ_DRAINED",
	"C-186_CQError":                 "rxe raises a CQ_ERR for each completion that is lost",
	"C-188_CloseFromHandler":        "the test needs QP_ACCESS_ERR, which rxe does not raise",
	"C-209_DepthNegotiation":        "rxe rounds the depths up to a power of two",
	"C-238_Solicited":               "rxe does not fire a solicited-only arming for a failed send",
	"C-244_DescriptorsAreLevelTrue": "the test needs QP_ACCESS_ERR, which rxe does not raise",
	"C-323_KeysAreUnpredictable":    "rxe makes keys of an index and 8 random bits",
}

// byKernel is what only one of them does.
var byKernel = map[string]map[string]string{
	"6.1": {
		"C-171_LastWQE":       "rxe never raises LAST_WQE_REACHED",
		"C-076_DifferentMTUs": "rxe takes packets larger than the path MTU of the queue pair",
	},
	"6.12": {},
}

// byTiming is what Soft-RoCE does on some runs.
var byTiming = map[string]string{
	"C-070_TransitionMatrix": "rxe lets a queue pair go from SQD to ERR only until its task has run and found it drained",
}

// byKernelAndTiming is what only one of them does, on some runs.
var byKernelAndTiming = map[string]map[string]string{
	"6.12": {
		"C-175_BindsThatFail": "rxe 6.12: a request that fails by itself may complete with WR_FLUSH_ERR",
		"C-177_NoWindow":      "rxe 6.12: a request that fails by itself may complete with WR_FLUSH_ERR",
	},
}
