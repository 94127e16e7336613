package verbs

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// Endpoint is what the other side needs to connect without a connection manager.
// It marshals to text and JSON.
type Endpoint struct {
	QPN ib.QPN
	PSN ib.PSN
	GID ib.GID
	LID ib.LID
	MTU ib.MTU
}

const endpointForm = "qpn=%06x psn=%06x gid=%v lid=%04x mtu=%d"

// String gives the text form: "qpn=000011 psn=3a5f01 gid=::ffff:10.0.0.1 lid=0000 mtu=1024".
func (e Endpoint) String() string {
	return fmt.Sprintf(endpointForm, uint32(e.QPN), uint32(e.PSN), e.GID, uint16(e.LID), e.MTU.Bytes())
}

// MarshalText gives the text form, which is also what package json makes a string of.
func (e Endpoint) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText parses the text form and refuses what is out of range: it comes from a
// peer.
func (e *Endpoint) UnmarshalText(b []byte) error {
	bad := func(why string) error {
		return fmt.Errorf("verbs: endpoint %.100q: %s: %w", b, why, syscall.EINVAL)
	}
	f := strings.Fields(string(b))
	if len(f) != 5 {
		return bad("it has not five fields")
	}
	var qpn, psn uint32
	var lid uint16
	var mtu int
	var gid ib.GID
	for i, p := range []struct {
		prefix, form string
		v            any
	}{{"qpn=", "%x", &qpn}, {"psn=", "%x", &psn}, {"gid=", "", nil}, {"lid=", "%x", &lid}, {"mtu=", "%d", &mtu}} {
		v, ok := strings.CutPrefix(f[i], p.prefix)
		if !ok {
			return bad("there is no " + p.prefix)
		}
		if p.v == nil {
			g, err := ib.ParseGID(v)
			if err != nil {
				return bad(err.Error())
			}
			gid = g
			continue
		}
		var rest string
		if n, err := fmt.Sscanf(v+" .", p.form+" %s", p.v, &rest); n != 2 || err != nil || rest != "." {
			return bad("the number after " + p.prefix)
		}
	}
	m := ib.MTUFromBytes(mtu)
	if qpn >= 1<<24 || psn >= 1<<24 || !m.Valid() || m.Bytes() != mtu {
		return bad("a number is out of range")
	}
	*e = Endpoint{ib.QPN(qpn), ib.PSN(psn), gid, ib.LID(lid), m}
	return nil
}

// PathOptions; zero fields: 7 retries (on Linux Soft-RoCE that is for ever), RNR retries for ever, ack time-out 67 ms, min
// RNR timer 0.64 ms, depths 1, traffic class 0, no rights for the peer.
type PathOptions struct {
	RetryCount, RNRRetry         *int // a pointer, as 0 is a value with a meaning
	Timeout, MinRNRTimer         time.Duration
	MaxRDAtomic, MaxDestRDAtomic int
	TrafficClass                 uint8
	Access                       ib.Access
	NoReceives                   bool
}

// Defaults of PathOptions.
const (
	defaultTimeout     = 67108864 * time.Nanosecond // 4.096 µs × 2^14
	defaultMinRNRTimer = 640 * time.Microsecond
	defaultRetry       = 7
)

// Endpoint prepares the queue pair (INIT) on a port and GID index and gives what to
// send to the peer. A negative index picks a RoCE v2 GID, an address that is not
// link-local if there is one. Called again it gives the same, and for another port or index
// syscall.EINVAL: RESET (Modify) begins anew.
func (qp *QP) Endpoint(port, gidIndex int) (Endpoint, error) {
	const op = "endpoint"
	if qp == nil || qp.name == nil {
		return Endpoint{}, opError(op, nil, "", errNil)
	}
	if !qp.typ.Connected() {
		return Endpoint{}, opError(op, qp.dev, qp.name(), fmt.Errorf("datagrams have no peer: %w", syscall.EINVAL))
	}
	qp.mu.Lock()
	e, hadPort, hadIndex := qp.endpoint, qp.port, qp.gidIdx
	qp.mu.Unlock()
	if e != (Endpoint{}) {
		if port != hadPort || gidIndex >= 0 && gidIndex != hadIndex {
			return Endpoint{}, invalid(op, qp.dev, qp.name(),
				"it is on port %d with GID %d already: go to RESET first to have it on another", hadPort, hadIndex)
		}
		return e, nil
	}
	g, p, err := qp.pickGID(port, gidIndex)
	if err != nil {
		return Endpoint{}, err
	}
	a := &QPAttr{State: ib.StateInit, Port: port}
	if err := qp.Modify(a, ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrAccess); err != nil {
		return Endpoint{}, err
	}
	e = Endpoint{QPN: qp.num, PSN: ib.PSN(rand.Uint32() & 0xFFFFFF), GID: g.GID, LID: p.LID, MTU: p.ActiveMTU}
	if g.MTU.Valid() {
		e.MTU = min(e.MTU, g.MTU)
	}
	qp.mu.Lock()
	qp.endpoint, qp.gidIdx = e, g.Index
	qp.mu.Unlock()
	return e, nil
}

// pickGID finds the GID for an index, or a good one.
func (qp *QP) pickGID(port, index int) (GIDEntry, PortAttr, error) {
	d := qp.dev
	p, err := d.Port(port)
	if err != nil {
		return GIDEntry{}, p, err
	}
	if index >= 0 {
		g, err := d.GID(port, index)
		return g, p, err
	}
	gids, err := d.GIDs()
	if err != nil {
		return GIDEntry{}, p, err
	}
	best, found := GIDEntry{}, -1
	for _, g := range gids {
		rank := 0
		switch {
		case g.Port != port:
			continue
		case g.Type == ib.GIDTypeRoCEv2 && !g.GID.IsLinkLocal():
			rank = 2
		case g.Type == ib.GIDTypeRoCEv2:
			rank = 1
		case p.Link == ib.LinkEthernet:
			continue // the other types cannot be routed
		}
		if rank > found {
			best, found = g, rank
		}
	}
	if found < 0 {
		return GIDEntry{}, p, opError("pick GID", d, fmt.Sprintf("port %d", port), fmt.Errorf("there is none that fits: %w", syscall.ENODATA))
	}
	return best, p, nil
}

// Join goes to RTR and RTS towards a peer, with the smaller MTU of both. Receives should
// have been posted: Join refuses to go on without (ErrNoReceives; see
// PathOptions.NoReceives).
func (qp *QP) Join(peer Endpoint, o *PathOptions) error {
	const op = "join"
	if qp == nil || qp.name == nil {
		return opError(op, nil, "", errNil)
	}
	if o == nil {
		o = &PathOptions{}
	}
	qp.mu.Lock()
	own, joined := qp.endpoint, qp.joined
	port := qp.port
	qp.mu.Unlock()
	switch {
	case own == (Endpoint{}) || joined:
		return opError(op, qp.dev, qp.name(), fmt.Errorf("Endpoint comes first, and Join once: %w", syscall.EINVAL))
	case !o.NoReceives && qp.srq == nil && qp.rq.outstanding() == 0:
		return opError(op, qp.dev, qp.name(), ErrNoReceives)
	}
	// The index of an address changes with the addresses of the host.
	index, err := qp.gidIndex(port, own.GID)
	if err != nil {
		return err
	}
	a := &QPAttr{
		State: ib.StateRTR, PathMTU: min(own.MTU, peer.MTU), DestQPN: peer.QPN, RQPSN: peer.PSN, SQPSN: own.PSN,
		AH: AHAttr{DGID: peer.GID, DLID: peer.LID, SGIDIndex: index, HopLimit: defaultHopLimit, TrafficClass: o.TrafficClass,
			Global: peer.GID != ib.GID{}, Port: port},
		Access:          o.Access,
		MaxRDAtomic:     max(o.MaxRDAtomic, 1),
		MaxDestRDAtomic: max(o.MaxDestRDAtomic, 1),
		Timeout:         orDefault(o.Timeout, defaultTimeout),
		MinRNRTimer:     orDefault(o.MinRNRTimer, defaultMinRNRTimer),
		RetryCount:      defaultRetry,
		RNRRetry:        defaultRetry,
	}
	if o.RetryCount != nil {
		a.RetryCount = *o.RetryCount
	}
	if o.RNRRetry != nil {
		a.RNRRetry = *o.RNRRetry
	}
	rtr := ib.AttrState | attrPathRTR | ib.AttrAccess
	rts := ib.AttrState | ib.AttrSQPSN
	if qp.typ == ib.RC {
		rtr |= ib.AttrMaxDestRDAtomic | ib.AttrMinRNRTimer
		rts |= attrRetry | ib.AttrMaxRDAtomic
	}
	if err := qp.Modify(a, rtr); err != nil {
		return err
	}
	a.State = ib.StateRTS
	if err := qp.Modify(a, rts); err != nil {
		return err
	}
	qp.mu.Lock()
	qp.joined = true
	qp.mu.Unlock()
	return nil
}

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

func (qp *QP) gidIndex(port int, gid ib.GID) (int, error) {
	gids, err := qp.dev.GIDs()
	if err != nil {
		return 0, err
	}
	found := -1
	for _, g := range gids {
		if g.Port == port && g.GID == gid && (found < 0 || g.Type == ib.GIDTypeRoCEv2) {
			found = g.Index
		}
	}
	if found < 0 {
		return 0, opError("join", qp.dev, qp.name(), fmt.Errorf("port %d has no GID %v any more: %w", port, gid, syscall.ENODATA))
	}
	return found, nil
}
