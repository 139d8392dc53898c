package broker

import (
	"net"
	"slices"
	"strings"

	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// Who may register what, and when:
//
//   - A service whose life has the lock, until the last process of that life is gone: the life's own program, and nobody else, not even root. It is known by the control
//     connection that it has inherited, and when it registers again by its pidfd.
//   - Any other service: a process that the broker did not start, where a rule lets it: it is trusted, or allow.register names it. One that waits for the lock takes it for
//     what holds that. Else it has a life of its own, which takes the place of another such process's that is not registered any more.
//   - As the service whose name it gives, or, where there is none, as the one whose file declares an endpoint of that name.
//   - The endpoints that the file declares, all of them. Who is trusted may have others besides that no file declares.
//   - Nobody what a live instance has.
//
// It is decided by claim alone, which holds the broker's mutex and then the service's until what it has decided is entered with both: so an open finds an instance and its
// life, or neither. That is the order of these mutexes everywhere.

// claim enters an instance for its service and its endpoints, and begins its control connection. A program that the broker has started comes with its life, if that is known by
// its connection. It returns the life if it is one of the broker's own, else nil. It fails with wire.Conflict, naming the owner, or with wire.NotPermitted, naming the rule.
func (b *Broker) claim(i *instance, p party, l *life, conn *net.UnixConn) (*life, error) {
	accepted, err := wire.NewFrame(wire.KindAccepted, 0, wire.Accepted{Limits: wire.DefaultLimits})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.declared[i.service]
	if owner := b.owners[i.service]; s == nil && owner != nil && b.declared[owner.name] == owner { // a server that gives no name has that of an endpoint
		s, i.service = owner, owner.name
	}
	if l != nil && l.s.name != i.service {
		return nil, wire.Errorf(wire.Conflict, "the broker started this process for the service %s, and it registers %s: name that in endpoints of the service's file, or have the program register what its file says",
			l.s.name, i.service)
	}
	var declared []string
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		declared = s.def.Endpoints
		l, err = s.entitledLocked(i, p, l)
	} else if !b.trusted(p.UID) {
		err = b.deny(p, "register "+wire.Printable(i.service, wire.MaxEndpoint), "", Event{Service: i.service})
	}
	if err != nil {
		return nil, err
	}
	if l != nil && l.locked {
		i.number, declared = l.number, l.def.Endpoints
	}
	if err := b.freeLocked(i, p, s, declared); err != nil {
		return nil, err
	}
	if err := b.chargeLocked(i, p, l); err != nil {
		return nil, err
	}
	i.mostTold, i.believed = leastTold, b.trusted(p.UID) || l != nil && l.locked && l.adopted
	if l != nil && l.locked || b.trusted(p.UID) {
		i.mostTold = mostTold
	}
	i.control = session.NewControl(conn, session.Config{Endpoint: "control of " + i.service, Peer: i.process, Handler: b.controlMux(i), Logger: b.log}, accepted)
	b.counters.opens.Add(i.endpoints...)
	b.services[i.service] = i
	for _, e := range i.endpoints {
		b.endpoints[e] = i
	}
	b.succeedLocked(i)
	close(b.claimed)
	b.claimed = make(chan struct{})
	b.events.add(i.event(EventInstanceRegistered))
	if s != nil {
		s.enterLocked(i, l)
	}
	if l != nil && l.locked {
		return l, nil
	}
	return nil, nil
}

// entitledLocked asks whether a process may register as an instance of the service, and returns the life that it is of; nil: one of its own.
func (s *service) entitledLocked(i *instance, p party, known *life) (*life, error) {
	l := s.life
	switch {
	case l != nil && l.locked && (l == known || l.is(p.handle)):
		return l, nil
	case l != nil && l.locked && l.adopted && l.keeper == nil:
		return nil, wire.Errorf(wire.Unavailable, "the instance of %s is not taken up yet, for want of descriptors", s.name)
	case l != nil && l.locked:
		e := wire.Errorf(wire.Conflict, "service %s has an instance that the broker started (%s): nobody else registers it meanwhile", s.name, l)
		e.Holder = &wire.Holder{PID: l.pid(), Service: s.name}
		return nil, e
	case known != nil:
		return nil, wire.Errorf(wire.Terminating, "%s has ended: its program is about to be killed", known)
	case !s.b.trusted(p.UID) && !s.def.Allow.Register.Permit(p.who()):
		return nil, s.b.deny(p, "register "+s.name, rule(s, "register", s.def.Allow.Register), Event{Service: s.name})
	case l != nil && (!l.served || l.process == i.id):
		return l, nil
	}
	return nil, nil
}

// freeLocked asks whether an instance may have what it wants: whether it is its service's, and nobody has it.
func (b *Broker) freeLocked(i *instance, p party, s *service, declared []string) error {
	if owner := b.services[i.service]; owner != nil && !owner.over() {
		return taken("service "+i.service, owner)
	}
	if !covers(i.endpoints, declared) {
		return wire.Errorf(wire.Conflict, "service %s is declared with the endpoints %s: an instance serves all of them", i.service, strings.Join(declared, ", "))
	}
	for _, e := range i.endpoints {
		switch owner := b.owners[e]; {
		case slices.Contains(declared, e), owner != nil && owner == s: // what was declared when an instance was started stays that one's
		case owner != nil:
			return wire.Errorf(wire.Conflict, "endpoint %s belongs to the service %s", e, owner.name)
		case !b.trusted(p.UID):
			return b.deny(p, "register "+e+", which no service file declares", "", Event{Service: i.service, Endpoint: e})
		}
		if owner := b.endpoints[e]; owner != nil && !owner.over() {
			return taken("endpoint "+e, owner)
		}
	}
	return nil
}

// chargeLocked charges a user for an instance that the broker has not started. One that registers again is charged already, perhaps to the user that its process was then.
func (b *Broker) chargeLocked(i *instance, p party, l *life) error {
	if before := b.latest[i.lineage()]; l != nil && l.locked || before != nil && before.charged {
		return nil
	}
	err := b.quotas.Charge(p.UID, quota.Registrations)
	i.charged, i.payer = err == nil, p.UID
	return err
}

// taken says who has a name.
func taken(what string, owner *instance) error {
	e := wire.Errorf(wire.Conflict, "%s is taken by %v, uid %d", what, owner, owner.process.UID)
	e.Holder = &wire.Holder{PID: owner.process.PID, UID: owner.process.UID, Service: owner.service}
	return e
}

// covers reports whether all of want are in have.
func covers(have, want []string) bool {
	return !slices.ContainsFunc(want, func(e string) bool { return !slices.Contains(have, e) })
}

// enterLocked gives an instance to its life. One that is of none that there is begins one: it was started by hand.
func (s *service) enterLocked(i *instance, l *life) {
	if l == nil {
		if before := s.life; before != nil { // it goes on beside, until its process is gone
			before.instance = nil
			before.tell()
		}
		l = s.newLifeLocked(Cause{})
		s.b.work.Go(l.accompany)
	}
	if l.locked {
		s.served = true
	} else {
		l.process = i.id
	}
	l.instance, l.latest, l.served = i, i, true
	s.settleLocked(l, nil)
	s.advanceLocked()
	s.changedLocked()
	l.tell()
}

// unregister takes an instance out: it gets no new sessions.
func (b *Broker) unregister(i *instance) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.services[i.service] == i {
		delete(b.services, i.service)
	}
	for _, e := range i.endpoints {
		if b.endpoints[e] == i {
			delete(b.endpoints, e)
		}
	}
	s := b.declared[i.service]
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != nil && s.life.instance == i {
		s.life.instance = nil
		s.changedLocked()
		s.life.tell()
	}
}

// held names who else has what a service's next instance is to have, which could not register then.
func (b *Broker) held(s *service, endpoints []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	what, owner := "service "+s.name, b.services[s.name]
	for _, e := range endpoints {
		if owner == nil || owner.over() {
			what, owner = "endpoint "+e, b.endpoints[e]
		}
	}
	if owner == nil || owner.over() {
		return nil
	}
	e := wire.Errorf(wire.Unavailable, "%s is not started before %v has ended, which has the %s: 'brokerctl service restart %s', or whoever started it, can end it",
		s.name, owner, what, owner.service)
	e.Holder = &wire.Holder{PID: owner.process.PID, UID: owner.process.UID, Service: owner.service}
	return e
}
