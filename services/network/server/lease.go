package server

import (
	"crypto/rand"
	"encoding/hex"
	"net"
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
//
// Its keepers are the processes whose life keeps its addresses from being given out: its witnesses and, of an orphaned one, its former holder.
// One that is orphaned because the service is stopped stays so, for the next instance to look at.
type lease struct {
	id        string
	token     string // by which its caller may withdraw it; it may be empty
	segment   *segment
	hostname  string // empty: none
	addresses []netip.Prefix
	mac       string
	at        time.Time

	state   state
	holder  *holder // nil unless it is taken or held
	from    *holder // who asked for it; nil if that was an earlier instance's
	session string  // the id of the session that allocated it
	client  network.Holder
	former  process.ID // the process that counts as its holder; zero: none does any more
	keepers []*keeper  // at most network.MaxWitnesses, and the former holder
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

// A wish is what somebody wants to lease.
type wish struct {
	holder   *holder
	segment  *segment
	hostname string
	token    string
	witness  *keeper // nil: none
}

// An obstacle is why a wish cannot be fulfilled now.
type obstacle struct {
	gone    bool   // the session is over, or the witness is
	doubt   bool   // it is not known which addresses are free
	other   *lease // this one has the hostname; nil: no address is free
	passing bool   // waiting may help: what is in the way is not held by the living
}

// takeLocked fulfils a wish in one step, or says what is in the way.
func (s *Server) takeLocked(w *wish) (*lease, *obstacle) {
	g := w.segment
	if w.holder.gone || w.witness != nil && w.witness.gone {
		return nil, &obstacle{gone: true}
	}
	if other := g.hostnames[w.hostname]; other != nil {
		return nil, &obstacle{other: other, passing: other.state == dying || other.state == orphaned}
	}
	if s.doubt != nil {
		return nil, &obstacle{doubt: true, passing: true}
	}
	addr, ok := g.pool.Allocate()
	if !ok {
		return nil, &obstacle{passing: g.dying+g.orphaned > 0}
	}
	l := &lease{
		id: s.newIDLocked(), token: w.token, segment: g, hostname: w.hostname, addresses: []netip.Prefix{netip.PrefixFrom(addr, g.Prefix.Bits())},
		mac: g.newMAC(), at: time.Now(), holder: w.holder, from: w.holder, session: w.holder.session.ID(), client: w.holder.client, former: w.holder.id,
	}
	s.enterLocked(l)
	w.holder.leases = append(w.holder.leases, l)
	if w.witness != nil {
		l.keep(w.witness)
	}
	return l, nil
}

// enterLocked enters a lease whose addresses are held into the table.
func (s *Server) enterLocked(l *lease) {
	s.leases[l.id] = l
	l.segment.macs[l.mac] = l
	if l.hostname != "" {
		l.segment.hostnames[l.hostname] = l
	}
	l.segment.count(l.state, len(l.addresses))
}

// count counts addresses that come to a state.
func (g *segment) count(st state, n int) {
	switch st {
	case dying:
		g.dying += n
	case orphaned:
		g.orphaned += n
	}
}

// moveLocked gives a lease another state.
func (s *Server) moveLocked(l *lease, to state) {
	l.segment.count(l.state, -len(l.addresses))
	l.segment.count(to, len(l.addresses))
	l.state = to
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
	s.moveLocked(l, over)
	delete(s.leases, l.id)
	g := l.segment
	delete(g.macs, l.mac)
	if l.hostname != "" {
		delete(g.hostnames, l.hostname)
	}
	for _, a := range l.addresses {
		g.pool.Release(a.Addr())
	}
	for _, k := range l.keepers {
		s.dropLocked(k, l)
	}
	l.keepers = nil
	s.record.soon(entry{Kind: entryFree, Lease: l.id})
	s.serveLocked(g)
}

// newIDLocked returns the id of a new lease.
func (s *Server) newIDLocked() string {
	for {
		var b [8]byte
		rand.Read(b[:])
		if id := hex.EncodeToString(b[:]); s.leases[id] == nil {
			return id
		}
	}
}

// newMAC makes a hardware address that nobody in the segment has: locally administered and unicast, by the two lowest bits of its first octet
// (IEEE 802, 8.2).
func (g *segment) newMAC() string {
	for {
		mac := make(net.HardwareAddr, 6)
		rand.Read(mac)
		mac[0] = mac[0]&^0x01 | 0x02
		if text := mac.String(); g.macs[text] == nil {
			return text
		}
	}
}

// info describes the lease.
func (l *lease) info() network.LeaseInfo {
	info := network.LeaseInfo{
		ID: l.id, Network: l.segment.Name, Hostname: l.hostname, Gateways: l.segment.gateways(), MAC: l.mac, MTU: l.segment.MTU,
		State: shown[l.state], AllocatedAt: wire.At(l.at), Session: l.session, Holder: l.client,
	}
	for _, a := range l.addresses {
		info.Addresses = append(info.Addresses, a.String())
	}
	return info
}

// entry returns the lease as the record has it.
func (l *lease) entry() entry {
	e := entry{
		Kind: entryHold, Lease: l.id, Network: l.segment.Name, Hostname: l.hostname, Addresses: slices.Clone(l.addresses), MAC: l.mac,
		AllocatedAt: l.at.UnixNano(), Session: l.session, PID: l.client.PID, UID: l.client.UID, Holder: l.former, Left: l.state == dying,
	}
	for _, k := range l.keepers {
		if k.id != l.former {
			e.Witnesses = append(e.Witnesses, k.id)
		}
	}
	return e
}

// wireHolder returns who has the lease, for an error.
func (l *lease) wireHolder() *wire.Holder {
	return &wire.Holder{PID: l.client.PID, UID: l.client.UID, Service: network.Endpoint, Lease: l.id}
}
