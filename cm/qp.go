package cm

import (
	"fmt"
	"sync"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// withDevice are the states in which an id that makes or takes a connection knows its
// device and has not used its queue pair yet.
var withDevice = one(stateAddrResolved, stateRouteQuery, stateRouteResolved, stateRequest)

// CreateQP makes a queue pair on the id's device, moves it to INIT, and ties it to
// the id: receives can be posted (rdma_create_qp). A pd or CQ of another device is
// refused, and so is a second queue pair. At once. The id's Close closes it.
//
// The type of the queue pair is that of the port space if cfg leaves it zero: RC, or
// UD, which is moved to RTS at once.
func (id *ID) CreateQP(pd *verbs.PD, cfg verbs.QPConfig) (*verbs.QP, error) {
	if err := id.enter(opQP, "the device is not known before the address is resolved", withDevice); err != nil {
		return nil, err
	}
	defer id.mu.Unlock()
	if cfg.Type == 0 {
		cfg.Type = qpType(id.ps)
	}
	err := id.qpFits(pd, cfg)
	if err != nil {
		return nil, id.errorf(opQP, err)
	}
	qp, err := pd.CreateQP(cfg)
	if err != nil {
		return nil, id.errorf(opQP, err)
	}
	if err := id.initQP(qp); err != nil {
		qp.Close()
		return nil, id.errorf(opQP, err)
	}
	id.qp, id.qpOwned = qp, true
	tie(qp, id)
	return qp, nil
}

// qpFits says why a queue pair cannot be the id's, or nothing. mu is held.
func (id *ID) qpFits(pd *verbs.PD, cfg verbs.QPConfig) error {
	switch {
	case id.qp != nil:
		return wrong("cm: the id has a queue pair already")
	case pd == nil:
		return wrong("cm: the protection domain is nil")
	case pd.Device() != id.dev:
		return otherDevice("the protection domain", pd.Device(), id.dev)
	case cfg.SendCQ == nil:
		return wrong("cm: QPConfig.SendCQ is nil")
	case cfg.SendCQ.Device() != id.dev:
		return otherDevice("QPConfig.SendCQ", cfg.SendCQ.Device(), id.dev)
	case cfg.RecvCQ != nil && cfg.RecvCQ.Device() != id.dev:
		return otherDevice("QPConfig.RecvCQ", cfg.RecvCQ.Device(), id.dev)
	case cfg.Type == ib.UD != datagram(id.ps):
		return wrong(fmt.Sprintf("cm: a queue pair of type %v does not fit port space %v", cfg.Type, id.ps))
	}
	return nil
}

func otherDevice(what string, have, want *verbs.Device) error {
	if have == nil {
		return wrong("cm: " + what + " is zero")
	}
	if a, b := have.Info().Name, want.Info().Name; a != b {
		return wrong(fmt.Sprintf("cm: %s is one of device %s, the id's is %s", what, a, b))
	}
	return wrong("cm: " + what + " is one of a private device: what fits an id comes from ID.Device, or verbs.Open")
}

// UseQP ties a queue pair that the caller made with PD.CreateQP to the id, instead of
// CreateQP. It must be in RESET or INIT and is moved to INIT. Its Close stays with the
// caller; the id moves and fails it.
func (id *ID) UseQP(qp *verbs.QP) error {
	if err := id.enter(opQP, "the device is not known before the address is resolved", withDevice); err != nil {
		return err
	}
	defer id.mu.Unlock()
	if qp == nil {
		return id.errorf(opQP, wrong("cm: the queue pair is nil"))
	}
	if err := id.qpFits(qp.PD(), qp.Config()); err != nil {
		return id.errorf(opQP, err)
	}
	if s := qp.State(); s != ib.StateReset && s != ib.StateInit {
		return id.errorf(opQP, wrong(fmt.Sprintf("cm: the queue pair is in %v: it must be in RESET or INIT", s)))
	}
	if err := id.initQP(qp); err != nil {
		return id.errorf(opQP, err)
	}
	id.qp = qp
	tie(qp, id)
	return nil
}

// initQP makes a new queue pair ready for receives. mu is held.
func (id *ID) initQP(qp *verbs.QP) error {
	if err := id.modify(qp, ib.StateInit, nil); err != nil {
		return err
	}
	if qp.Type() != ib.UD {
		return nil
	}
	// A datagram queue pair has no peer: it goes all the way (IBTA Vol 1 §10.3.1).
	if err := qp.Modify(&verbs.QPAttr{State: ib.StateRTR}, ib.AttrState); err != nil {
		return err
	}
	return qp.Modify(&verbs.QPAttr{State: ib.StateRTS}, ib.AttrState|ib.AttrSQPSN)
}

// ready moves a connected queue pair to RTS towards the peer, with what this side has
// decided. INIT is repeated first: the attributes may depend on the path, and the access
// rights on the peer's request, which were not known when the queue pair was made.
func (id *ID) ready(s *settings) error {
	for _, to := range [...]ib.QPState{ib.StateInit, ib.StateRTR, ib.StateRTS} {
		if err := id.modify(id.qp, to, s); err != nil {
			return fmt.Errorf("move the queue pair to %v: %w", to, err)
		}
	}
	return nil
}

// modify moves a queue pair with the attributes that the connection manager knows.
func (id *ID) modify(qp *verbs.QP, to ib.QPState, s *settings) error {
	a, m, err := id.drv.InitQPAttr(to)
	if err != nil {
		return err
	}
	if s != nil {
		s.apply(&a, m)
	}
	return qp.Modify(&a, m)
}

// apply puts into attributes what the connection manager's own do not say. The peer's
// numbers are bounded by what this side offered: it may be served less, never more.
func (s *settings) apply(a *verbs.QPAttr, m ib.QPAttrMask) {
	if m&ib.AttrAccess != 0 && s.conn.ResponderResources == 0 {
		a.Access &^= ib.RemoteRead | ib.RemoteAtomic // the peer may have asked for them
	}
	if m&ib.AttrMinRNRTimer != 0 { // not on iWARP
		a.MinRNRTimer = s.minRNR
	}
	if m&ib.AttrMaxDestRDAtomic != 0 {
		a.MaxDestRDAtomic = min(a.MaxDestRDAtomic, int(s.conn.ResponderResources))
	}
	if m&ib.AttrMaxRDAtomic != 0 {
		a.MaxRDAtomic = min(a.MaxRDAtomic, int(s.conn.InitiatorDepth))
	}
}

// QPAttr gives what the CM knows of the next state of a queue pair that is not tied
// to the id at all (rdma_init_qp_attr); ConnParam.QPN names it. For INIT the address
// must be resolved; for RTR and RTS the peer must have asked (Request) or answered
// (ConnectResponse). The min RNR timer is 0.64 ms, where librdmacm gives 655 ms.
func (id *ID) QPAttr(s ib.QPState) (verbs.QPAttr, ib.QPAttrMask, error) {
	ok := withDevice
	if s != ib.StateInit {
		ok = one(stateRequest, stateResponded, stateConnected)
	}
	if err := id.enter(opQPAttr, "the attributes of that state are not known yet", ok); err != nil {
		return verbs.QPAttr{}, 0, err
	}
	defer id.mu.Unlock()
	a, m, err := id.drv.InitQPAttr(s)
	if err != nil {
		return verbs.QPAttr{}, 0, id.errorf(opQPAttr, err)
	}
	if m&ib.AttrMinRNRTimer != 0 {
		a.MinRNRTimer = defaultMinRNR
		if id.set.minRNR != 0 {
			a.MinRNRTimer = id.set.minRNR
		}
	}
	return a, m, nil
}

// ties says which id a queue pair belongs to, for the asynchronous event COMM_EST: the
// first data came before the peer's last message of the handshake, which may be lost,
// and the connection manager must be told (IBTA Vol 1 §12.9.6).
var ties struct {
	mu      sync.Mutex
	ids     map[*verbs.QP]*ID
	devices map[*verbs.Device]*observed
}

// observed is a device with queue pairs of ids. Its asynchronous events are seen in
// the goroutine of whoever reads them.
type observed struct {
	qps    int
	cancel func() // nil until Observe has returned
}

func tie(qp *verbs.QP, id *ID) {
	dev := qp.PD().Device()
	ties.mu.Lock()
	if ties.ids == nil {
		ties.ids = map[*verbs.QP]*ID{}
		ties.devices = map[*verbs.Device]*observed{}
	}
	ties.ids[qp] = id
	o := ties.devices[dev]
	first := o == nil
	if first {
		o = &observed{}
		ties.devices[dev] = o
	}
	o.qps++
	ties.mu.Unlock()
	if !first {
		return
	}
	cancel := dev.Async().Observe(commEst) // not under mu: commEst takes it
	ties.mu.Lock()
	late := o.qps == 0
	o.cancel = cancel
	ties.mu.Unlock()
	if late {
		cancel()
	}
}

func untie(qp *verbs.QP) {
	dev := qp.PD().Device()
	ties.mu.Lock()
	o := ties.devices[dev]
	if ties.ids[qp] == nil || o == nil {
		ties.mu.Unlock()
		return
	}
	delete(ties.ids, qp)
	o.qps--
	var cancel func()
	if o.qps == 0 {
		delete(ties.devices, dev)
		cancel = o.cancel
	}
	ties.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// commEst sees the asynchronous events of devices.
func commEst(ev verbs.AsyncEvent) {
	if ev.Type != ib.EventCommEst || ev.QP == nil {
		return
	}
	ties.mu.Lock()
	id := ties.ids[ev.QP]
	ties.mu.Unlock()
	if id != nil {
		id.dataCame()
	}
}
