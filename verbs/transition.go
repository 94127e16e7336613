package verbs

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// TransitionError is the answer to a Modify that the state table forbids. It wraps
// EINVAL. If neither Missing nor Invalid is set, there is no such transition.
type TransitionError struct {
	Type             ib.QPType
	From, To         ib.QPState
	Missing, Invalid ib.QPAttrMask
}

// Error names the attributes.
func (e *TransitionError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "verbs: modify %v queue pair %v → %v", e.Type, e.From, e.To)
	switch {
	case e.Missing|e.Invalid == 0:
		b.WriteString(" is not a transition")
	case e.Invalid == 0:
		fmt.Fprintf(&b, " needs %v too", e.Missing)
	case e.Missing == 0:
		fmt.Fprintf(&b, " does not take %v", e.Invalid)
	default:
		fmt.Fprintf(&b, " needs %v too and does not take %v", e.Missing, e.Invalid)
	}
	return b.String()
}

// Unwrap gives EINVAL.
func (e *TransitionError) Unwrap() error { return syscall.EINVAL }

// transition says which attributes a change of state needs and takes, AttrState aside.
type transition struct {
	ok                 bool
	required, optional ib.QPAttrMask
}

const qpStates = int(ib.StateError) + 1

type transitionTable [qpStates][qpStates]transition

// Attributes that go together.
const (
	attrPathRTR = ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN
	attrRetry   = ib.AttrTimeout | ib.AttrRetryCount | ib.AttrRNRRetry
	attrSend    = ib.AttrCurState | ib.AttrAltPath | ib.AttrAccess | ib.AttrPathMigState
)

// transitions are the tables of IBTA Vol 1 §11.2.5.2 (table 91), as ibv_modify_qp(3) and
// the kernel have them: in contrast to the standard, RESET does not go to the error state.
var transitions = map[ib.QPType]*transitionTable{
	ib.RC: connectedTable(
		ib.AttrMaxDestRDAtomic|ib.AttrMinRNRTimer, // to RTR
		attrRetry|ib.AttrMaxRDAtomic,              // to RTS
		ib.AttrMinRNRTimer,                        // may come in RTS
		attrRetry|ib.AttrPort|ib.AttrMaxRDAtomic|ib.AttrMaxDestRDAtomic|ib.AttrMinRNRTimer, // may come in SQD
	),
	ib.UC: connectedTable(0, 0, 0, 0),
	ib.UD: datagramTable(),
}

// always are the transitions that all types have, without attributes.
func always() *transitionTable {
	t := &transitionTable{}
	for s := range qpStates {
		t[s][ib.StateReset].ok = true
		t[s][ib.StateError].ok = ib.QPState(s) != ib.StateReset
	}
	t[ib.StateRTS][ib.StateSQD] = transition{ok: true, optional: ib.AttrSQDNotify}
	return t
}

func connectedTable(rtr, rts, inRTS, inSQD ib.QPAttrMask) *transitionTable {
	const first = ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccess
	t := always()
	t[ib.StateReset][ib.StateInit] = transition{true, first, 0}
	t[ib.StateInit][ib.StateInit] = transition{true, 0, first}
	t[ib.StateInit][ib.StateRTR] = transition{true, attrPathRTR | rtr, ib.AttrAltPath | ib.AttrAccess | ib.AttrPKeyIndex}
	t[ib.StateRTR][ib.StateRTS] = transition{true, ib.AttrSQPSN | rts, attrSend | inRTS}
	t[ib.StateRTS][ib.StateRTS] = transition{true, 0, attrSend | inRTS}
	t[ib.StateSQD][ib.StateRTS] = transition{true, 0, attrSend | inRTS}
	t[ib.StateSQD][ib.StateSQD] = transition{true, 0,
		ib.AttrAV | ib.AttrAltPath | ib.AttrAccess | ib.AttrPKeyIndex | ib.AttrPathMigState | inSQD}
	if rts == 0 { // a reliable connection has no SQE state
		t[ib.StateSQE][ib.StateRTS] = transition{true, 0, ib.AttrCurState | ib.AttrAccess}
	} else {
		t[ib.StateSQE][ib.StateRTS] = transition{true, 0, ib.AttrCurState}
	}
	return t
}

func datagramTable() *transitionTable {
	const first = ib.AttrPKeyIndex | ib.AttrPort | ib.AttrQKey
	t := always()
	t[ib.StateReset][ib.StateInit] = transition{true, first, 0}
	t[ib.StateInit][ib.StateInit] = transition{true, 0, first}
	t[ib.StateInit][ib.StateRTR] = transition{true, 0, ib.AttrPKeyIndex | ib.AttrQKey}
	t[ib.StateRTR][ib.StateRTS] = transition{true, ib.AttrSQPSN, ib.AttrCurState | ib.AttrQKey}
	t[ib.StateRTS][ib.StateRTS] = transition{true, 0, ib.AttrCurState | ib.AttrQKey}
	t[ib.StateSQD][ib.StateRTS] = transition{true, 0, ib.AttrCurState | ib.AttrQKey}
	t[ib.StateSQD][ib.StateSQD] = transition{true, 0, ib.AttrPKeyIndex | ib.AttrQKey}
	t[ib.StateSQE][ib.StateRTS] = transition{true, 0, ib.AttrCurState | ib.AttrQKey}
	return t
}

// checkTransition compares a mask with the table.
func checkTransition(typ ib.QPType, from, to ib.QPState, m ib.QPAttrMask) error {
	t := transitions[typ]
	if t == nil || int(from) >= qpStates || int(to) >= qpStates || !t[from][to].ok {
		return &TransitionError{Type: typ, From: from, To: to}
	}
	row := t[from][to]
	missing := row.required &^ m
	invalid := m &^ (row.required | row.optional | ib.AttrState)
	if missing|invalid != 0 {
		return &TransitionError{Type: typ, From: from, To: to, Missing: missing, Invalid: invalid}
	}
	return nil
}
