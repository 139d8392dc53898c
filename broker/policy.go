package broker

import (
	"fmt"
	"slices"
	"strings"

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

// deny counts and words a refusal: who may not do what, and the rule.
func (b *Broker) deny(w servicefile.Who, what string, rule string) error {
	b.denied.Add(1)
	owner := "root"
	if b.self.UID != 0 {
		owner = fmt.Sprintf("root and uid %d", b.self.UID)
	}
	if rule != "" {
		owner += ", and whom " + rule + " names,"
	}
	return wire.Errorf(wire.NotPermitted, "uid %d may not %s: only %s may", w.UID, what, owner)
}

// rule words one list of a service's allow table.
func rule(s *service, list string, rules servicefile.Rules) string {
	if s == nil {
		return ""
	}
	var texts []string
	for _, r := range rules {
		texts = append(texts, r.String())
	}
	return fmt.Sprintf("allow.%s of %s (%s)", list, s.name, strings.Join(texts, ", "))
}

// mayOpen asks whether a client may open an endpoint.
func (b *Broker) mayOpen(w servicefile.Who, endpoint string) error {
	s := b.owner(endpoint)
	switch {
	case b.trusted(w.UID), endpoint == Endpoint, s != nil && s.allow().Open.Permit(w):
		return nil
	case s == nil:
		return b.deny(w, "open "+endpoint, "")
	}
	return b.deny(w, "open "+endpoint, rule(s, "open", s.allow().Open))
}

// mayRegister asks whether a process that the broker did not start may register as a service.
func (b *Broker) mayRegister(w servicefile.Who, service string) error {
	s := b.service(service)
	switch {
	case b.trusted(w.UID), s != nil && s.allow().Register.Permit(w):
		return nil
	case s == nil:
		return b.deny(w, "register "+wire.Printable(service, wire.MaxEndpoint), "")
	}
	return b.deny(w, "register "+service, rule(s, "register", s.allow().Register))
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
func (b *Broker) mayAdminister(w servicefile.Who, s *service, what string) error {
	switch {
	case b.administers(w, s):
		return nil
	case s == nil:
		return b.deny(w, what, "")
	}
	return b.deny(w, what, rule(s, "admin", s.allow().Admin))
}

// unknown is the refusal of an endpoint that no service has. It names those that are near, as far as the client may open them.
func (b *Broker) unknown(w servicefile.Who, endpoint string) error {
	known := slices.DeleteFunc(b.endpointNames(), func(e string) bool {
		s := b.owner(e)
		return !b.trusted(w.UID) && e != Endpoint && (s == nil || !s.allow().Open.Permit(w))
	})
	e := wire.Errorf(wire.UnknownEndpoint, "no service has the endpoint %s", endpoint)
	if near := nearest.Of(endpoint, known); len(near) > 0 {
		e.Text += ": is it " + strings.Join(near, " or ") + "?"
	}
	return e
}
