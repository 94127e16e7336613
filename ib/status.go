package ib

// Status of a completion (ibv_wc_status). It is not an error until asked: see Err.
type Status uint8

const (
	StatusSuccess Status = iota
	StatusLocLen
	StatusLocQPOp
	StatusLocEECOp
	StatusLocProt
	StatusWRFlush
	StatusMWBind
	StatusBadResp
	StatusLocAccess
	StatusRemInvReq
	StatusRemAccess
	StatusRemOp
	StatusRetryExc
	StatusRNRRetryExc
	StatusLocRDDViol
	StatusRemInvRDReq
	StatusRemAbort
	StatusInvEECN
	StatusInvEECState
	StatusFatal
	StatusRespTimeout
	StatusGeneral
	StatusTM
	StatusTMRndvIncomplete
)

// String gives the name of the C constant without IBV_WC_: SUCCESS, WR_FLUSH_ERR.
func (s Status) String() string {
	if int(s) < len(statuses) {
		return statuses[s].name
	}
	return name("Status", nil, int(s))
}

// Err gives nil for success, else a StatusError. It does not allocate.
func (s Status) Err() error {
	if s == StatusSuccess {
		return nil
	}
	return StatusError(s)
}

// StatusError is a failed Status as an error; compare with ==, or errors.Is
// with the values below. It is one byte: making one does not allocate.
type StatusError Status

// Error says what failed and, where the usual cause is known, what to look at.
func (e StatusError) Error() string {
	s := Status(e)
	if int(s) >= len(statuses) {
		return "work request failed: " + s.String()
	}
	t := &statuses[s]
	if t.remedy == "" {
		return t.text + " (" + t.name + ")"
	}
	return t.text + " (" + t.name + "): " + t.remedy
}

// Status gives the status that e is made of.
func (e StatusError) Status() Status { return Status(e) }

// Remedy gives the second half of Error, what to look at; empty if nothing is known.
func (e StatusError) Remedy() string {
	if int(e) < len(statuses) {
		return statuses[e].remedy
	}
	return ""
}

var (
	ErrWRFlush     error = StatusError(StatusWRFlush)     // the queue pair left the working states
	ErrRetryExc    error = StatusError(StatusRetryExc)    // the peer does not answer
	ErrRNRRetryExc error = StatusError(StatusRNRRetryExc) // the peer posted no receive
	ErrRemAccess   error = StatusError(StatusRemAccess)   // wrong rkey, bounds or rights at the peer
)

// statuses: meanings from IBTA Vol 1 §10.8.6 and ibv_poll_cq(3).
var statuses = [...]struct{ name, text, remedy string }{
	StatusSuccess: {"SUCCESS", "success", ""},
	StatusLocLen: {"LOC_LEN_ERR", "local length error",
		"the message is longer than the posted receive, or longer than the port allows"},
	StatusLocQPOp: {"LOC_QP_OP_ERR", "local queue pair operation error",
		"the request does not fit the queue pair's type, state or limits"},
	StatusLocEECOp: {"LOC_EEC_OP_ERR", "local EE context operation error", ""},
	StatusLocProt: {"LOC_PROT_ERR", "local protection error",
		"an SGE has a wrong lkey or leaves its region, or the region was closed"},
	StatusWRFlush: {"WR_FLUSH_ERR", "work request flushed",
		"the queue pair left the working states; the first failed completion, or its Err, has the cause"},
	StatusMWBind: {"MW_BIND_ERR", "memory window bind error",
		"the region must allow MWBind and the rights of the window"},
	StatusBadResp: {"BAD_RESP_ERR", "bad response", "the peer sent a response that fits no request"},
	StatusLocAccess: {"LOC_ACCESS_ERR", "local access error",
		"a write with immediate failed at this side's memory"},
	StatusRemInvReq: {"REM_INV_REQ_ERR", "remote invalid request",
		"the message does not fit the peer's receive, or the peer does not support or allow the operation"},
	StatusRemAccess: {"REM_ACCESS_ERR", "remote access error",
		"rkey, address range or access rights do not fit the peer's region, or its queue pair does not allow it"},
	StatusRemOp: {"REM_OP_ERR", "remote operation error",
		"the peer failed to do it; its own completions or events say why"},
	StatusRetryExc: {"RETRY_EXC_ERR", "transport retries exceeded",
		"the peer does not answer: gone, not yet RTR, wrong QPN or GID, or UDP port 4791 blocked"},
	StatusRNRRetryExc: {"RNR_RETRY_EXC_ERR", "receiver-not-ready retries exceeded",
		"the peer posted no receive; post receives before connecting, or let RNR retries be 7"},
	StatusLocRDDViol:       {"LOC_RDD_VIOL_ERR", "local RDD violation", ""},
	StatusRemInvRDReq:      {"REM_INV_RD_REQ_ERR", "remote invalid RD request", ""},
	StatusRemAbort:         {"REM_ABORT_ERR", "remote aborted", "the peer's queue pair went to the error state"},
	StatusInvEECN:          {"INV_EECN_ERR", "invalid EE context number", ""},
	StatusInvEECState:      {"INV_EEC_STATE_ERR", "invalid EE context state", ""},
	StatusFatal:            {"FATAL_ERR", "fatal error", "the device failed; open it again"},
	StatusRespTimeout:      {"RESP_TIMEOUT_ERR", "response time-out", ""},
	StatusGeneral:          {"GENERAL_ERR", "general error", "see the vendor's code in the completion"},
	StatusTM:               {"TM_ERR", "tag matching error", ""},
	StatusTMRndvIncomplete: {"TM_RNDV_INCOMPLETE", "tag matching rendezvous incomplete", ""},
}
