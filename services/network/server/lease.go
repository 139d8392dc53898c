package server

import (
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// A lease is addresses, MAC and hostname of one segment. The Server's mutex guards it.
//
//	taken ── recorded ──▶ held ── session over or released, a keeper lives ──▶ dying ── last keeper gone ──▶ over
//	  │                    ├───── session over or released, no keeper lives, or withdrawn ─────────────────▶ over
//	  │                    └───── the service is stopped ──▶ orphaned
//	  └── session over, not recorded, or nobody waits for it any more ─────────────────────────────────────▶ over
//	read from an earlier instance's record ──▶ orphaned ── last keeper gone ──▶ over
//	dying, orphaned ── reclaimed ──▶ held
//	dying, orphaned ── released by an operator or its user ──▶ over
//
// Its keepers are what keeps its addresses from being given out as long as it lives: its witnesses and, of an orphaned one, its former holder.
// One that is orphaned because the service is stopped stays so, for the next instance to look at.
type lease struct {
	id        string
	token     string // by which its caller may withdraw it; empty: none was given, or it was taken back
	segment   *segment
	hostname  string // empty: none
	aliases   []string
	addresses []netip.Prefix
	mac       string
	macGiven  bool // it was asked for
	at        time.Time
	proof     string // the SHA-256 of the secret that its holder was told, in hexadecimal; empty: none was
	cut       bool   // it has lost an address or a name, because the networks have changed

	before, after *lease // in its segment's order

	state   state
	holder  *holder // nil unless it is taken or held
	from    *holder // who asked for it; nil if that was an earlier instance's
	session string  // the id of the session that allocated it
	client  network.Holder
	former  process.ID // the process that counts as its holder; zero: none does any more
	keepers []*keeper  // at most network.MaxWitnesses, and the former holder
	why     string     // it leaves its state, if somebody said so: network.Why…
	// stranded: the service is stopped, and nobody looks at the former holder any more.
	stranded bool
}

type state int

const (
	taken state = iota
	held
	dying
	orphaned
	over
)

// shown is what a state is called in lists. A lease that is taken is not in them.
var shown = map[state]string{held: network.StateHeld, dying: network.StateDying, orphaned: network.StateOrphaned}

// enterLocked enters a lease whose addresses are held into the table.
func (s *Server) enterLocked(l *lease) {
	s.leases[l.id] = l
	s.byUID[l.client.UID]++
	l.segment.enter(l)
}

// moveLocked gives a lease another state.
func (s *Server) moveLocked(l *lease, to state) {
	was := l.state
	l.segment.tally(l, -1)
	l.state = to
	l.segment.tally(l, 1)
	s.movedLocked(l, was)
}

// leaveLocked takes a lease from its session, which is over or gives it back.
func (s *Server) leaveLocked(l *lease) {
	l.disown()
	if l.state == taken || len(l.keepers) == 0 {
		s.endLocked(l)
		return
	}
	l.former = process.ID{}
	s.moveLocked(l, dying)
	s.record.soon(entry{Kind: entryLeave, Lease: l.id})
}

// strandLocked takes a lease from its session because the service is stopped. The record goes on saying who has it.
func (s *Server) strandLocked(l *lease) {
	l.disown()
	if l.state == taken {
		s.endLocked(l)
		return
	}
	s.moveLocked(l, orphaned)
	l.stranded = true
}

// disown takes a lease out of its holder's.
func (l *lease) disown() {
	if h := l.holder; h != nil {
		h.leases = slices.DeleteFunc(h.leases, func(other *lease) bool { return other == l })
		l.holder = nil
	}
}

// endLocked frees all that a lease has, and gives it to those who wait. A lease that is over stays so.
func (s *Server) endLocked(l *lease) {
	if l.state == over {
		return
	}
	l.disown()
	g := l.segment
	for w := range s.walks {
		w.passLocked(l)
	}
	g.leave(l, s.now())
	was := l.state
	if was != taken && l.hostname != "" && !g.Forgets {
		g.memory.remember(l.hostname, l.plain())
	}
	l.state = over
	delete(s.leases, l.id)
	if s.byUID[l.client.UID]--; s.byUID[l.client.UID] == 0 {
		delete(s.byUID, l.client.UID)
	}
	for _, k := range l.keepers {
		s.dropLocked(k, l)
	}
	l.keepers = nil
	s.endedLocked(l, was)
	s.record.soon(entry{Kind: entryFree, Lease: l.id})
	s.serveLocked(g)
}

// names returns the hostname, if there is one, and the aliases.
func (l *lease) names() []string {
	if l.hostname == "" {
		return l.aliases
	}
	return append([]string{l.hostname}, l.aliases...)
}

// plain returns the addresses without the lengths of their prefixes.
func (l *lease) plain() []netip.Addr {
	list := make([]netip.Addr, len(l.addresses))
	for i, a := range l.addresses {
		list[i] = a.Addr()
	}
	return list
}

// gateways returns those of the prefixes that the addresses are of.
func (l *lease) gateways() []netip.Addr {
	return slices.DeleteFunc(l.segment.gateways(), func(gateway netip.Addr) bool {
		prefix, _ := l.segment.prefixOf(gateway)
		return !slices.ContainsFunc(l.addresses, func(a netip.Prefix) bool { return prefix.Contains(a.Addr()) })
	})
}

// info describes the lease.
func (l *lease) info() network.LeaseInfo {
	return network.LeaseInfo{
		ID: l.id, Network: l.segment.Name, Hostname: l.hostname, Aliases: l.aliases, Addresses: texts(l.addresses), Gateways: texts(l.gateways()),
		MAC: l.mac, MACGiven: l.macGiven, MTU: l.segment.MTU, State: shown[l.state], AllocatedAt: wire.At(l.at), Session: l.session, Holder: l.client,
		Witnesses: l.witnesses(),
	}
}

// witnesses describes what the lease hangs on beside its session.
func (l *lease) witnesses() []network.WitnessInfo {
	var list []network.WitnessInfo
	for _, k := range l.keepers {
		list = append(list, network.WitnessInfo{PID: k.id.PID, Namespace: k.space.Inode})
	}
	return list
}

// reply describes the lease to who has allocated it: with all that a host of its network is told, the secret that proves it, and the path of the broker's
// socket.
func (l *lease) reply(secret, socket string) network.LeaseInfo {
	info, g := l.info(), l.segment
	info.DNS, info.Search, info.Routes, info.Broker, info.Secret = texts(g.DNS), g.Search, g.routes(), socket, secret
	info.Witnesses = nil
	return info
}

// entry returns the lease as the record has it.
func (l *lease) entry() entry {
	e := entry{
		Kind: entryHold, Lease: l.id, Network: l.segment.Name, Hostname: l.hostname, Aliases: l.aliases, Addresses: slices.Clone(l.addresses),
		MAC: l.mac, MACGiven: l.macGiven, Token: l.token,
		Proof: l.proof, Cut: l.cut, AllocatedAt: l.at.UnixNano(), Session: l.session, PID: l.client.PID, UID: l.client.UID, Holder: l.former, Left: l.state == dying,
	}
	for _, k := range l.keepers {
		switch {
		case k.space != (space{}):
			e.Spaces = append(e.Spaces, k.space)
		case k.id != l.former:
			e.Witnesses = append(e.Witnesses, k.id)
		}
	}
	return e
}

// line returns what the record is to say of a lease at this moment.
func (s *Server) line(l *lease) entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.state == over {
		return entry{Kind: entryFree, Lease: l.id}
	}
	return l.entry()
}

// wireHolder returns who has the lease, for an error.
func (l *lease) wireHolder() *wire.Holder {
	return &wire.Holder{PID: l.client.PID, UID: l.client.UID, Service: network.Endpoint, Lease: l.id}
}
