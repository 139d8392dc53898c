package broker

import (
	"fmt"
	"slices"

	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/wire"
)

// The policy says who may do what. All of it is decided on credentials that the kernel gave when the connection was made:
//
//   - root and the broker's own user may do everything;
//   - a service's file lets others open its endpoints, register them, or administer it: start, stop, and see and close its sessions;
//   - everybody may open Endpoint, for what is their own: the sessions whose client they are.

// who is the party as rules see it.
func (p party) who() servicefile.Who {
	return servicefile.Who{UID: p.UID, GID: p.GID, Groups: p.groups}
}

// trusted reports whether a user may do everything.
func (b *Broker) trusted(uid uint32) bool { return uid == 0 || uid == b.self.UID }

// deny counts, tells and words a refusal: who may not do what, to the service or the endpoint that on names, and the rule.
func (b *Broker) deny(p party, what, rule string, on Event) error {
	owner := "root"
	if b.self.UID != 0 {
		owner = fmt.Sprintf("root and uid %d", b.self.UID)
	}
	if rule != "" {
		owner += ", and whom " + rule + " names,"
	}
	err := wire.Errorf(wire.NotPermitted, "uid %d may not %s: only %s may", p.UID, what, owner)
	on.Kind, on.Client = EventDenied, &p.Process
	b.events.refused(on, err)
	return err
}

// denyCommand is deny, and logs it, which the others do when they have answered.
func (b *Broker) denyCommand(p party, what, rule string, on Event) error {
	err := b.deny(p, what, rule, on)
	b.denials.warn("denied", "peer", p.PID, "uid", p.UID, "err", err)
	return err
}

// rule words one list of a service's allow table.
func rule(s *service, list string, rules servicefile.Rules) string {
	if s == nil {
		return ""
	}
	if len(rules) == 0 {
		return fmt.Sprintf("allow.%s of %s (empty)", list, s.name)
	}
	return fmt.Sprintf("allow.%s of %s (%v)", list, s.name, rules)
}

// permits reports whether a client may open an endpoint, which is of the service s; nil: of none that a file declares.
func (b *Broker) permits(p party, s *service, endpoint string) bool {
	return b.trusted(p.UID) || endpoint == Endpoint || s != nil && s.allow().Open.Permit(p.who())
}

// mayOpen asks whether a client may open an endpoint.
func (b *Broker) mayOpen(p party, endpoint string) error {
	s := b.owner(endpoint)
	switch {
	case b.permits(p, s, endpoint):
		return nil
	case s == nil:
		return b.deny(p, "open "+endpoint, "", Event{Endpoint: endpoint})
	}
	return b.deny(p, "open "+endpoint, rule(s, "open", s.allow().Open), Event{Service: s.name, Endpoint: endpoint})
}

// administers reports whether somebody may administer a service; nil is one that no file declares.
func (b *Broker) administers(w servicefile.Who, s *service) bool {
	return b.trusted(w.UID) || s != nil && s.allow().Admin.Permit(w)
}

// sees reports whether somebody is told of a service: who may open, register or administer it.
func (b *Broker) sees(w servicefile.Who, s *service) bool {
	if b.trusted(w.UID) || s == nil {
		return b.trusted(w.UID)
	}
	allow := s.allow()
	return allow.Open.Permit(w) || allow.Register.Permit(w) || allow.Admin.Permit(w)
}

// mayAdminister is administers as an error: what is denied.
func (b *Broker) mayAdminister(p party, s *service, what string) error {
	switch {
	case b.administers(p.who(), s):
		return nil
	case s == nil:
		return b.denyCommand(p, what, "", Event{})
	}
	return b.denyCommand(p, what, rule(s, "admin", s.allow().Admin), Event{Service: s.name})
}

// unknown is the refusal of an endpoint that no service has. It names those that are near, as far as the client may open them.
func (b *Broker) unknown(w servicefile.Who, endpoint string) error {
	known := slices.DeleteFunc(b.endpointNames(), func(e string) bool {
		s := b.owner(e)
		return !b.trusted(w.UID) && e != Endpoint && (s == nil || !s.allow().Open.Permit(w))
	})
	return wire.Errorf(wire.UnknownEndpoint, "no service has the endpoint %s%s", endpoint, nearest.Question(endpoint, known))
}
