package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// release serves network.MethodRelease. It is recorded when it returns, unless that fails: then it is as soon as it can be, and the lease is over all the same.
func (s *Server) release(ctx context.Context, r network.LeaseRef) (any, error) {
	defer s.record.settle(ctx)
	s.mu.Lock()
	defer s.unlockUnrecorded()
	h, l, err := s.ownLocked(ctx, r.Lease)
	if err != nil {
		return nil, err
	}
	l.why = network.WhyReleased
	s.leaveLocked(l)
	s.changedLocked(h)
	return nil, nil
}

// evict serves network.MethodEvict. It is no release: one of those may come again, when its lease is dying, and must not end what a witness keeps.
// It is recorded as a release is.
func (s *Server) evict(ctx context.Context, r network.LeaseRef) (any, error) {
	defer s.record.settle(ctx)
	s.mu.Lock()
	defer s.unlockUnrecorded()
	l := s.leases[r.Lease]
	switch {
	case l == nil || l.state == taken:
		return nil, wire.Errorf(wire.NotFound, "there is no lease %s", r.Lease)
	case !s.sees(ctx, l):
		return nil, s.notPermitted("lease " + r.Lease)
	case !l.unheld():
		e := wire.Errorf(wire.NotPermitted, "lease %s is held by process %d (uid %d), and only its session releases it: close that", l.id, l.client.PID, l.client.UID)
		e.Holder = l.wireHolder()
		return nil, e
	}
	l.why = network.WhyOperator
	s.endLocked(l)
	peer := services.FromContext(ctx).Peer()
	s.log.Info(fmt.Sprintf("lease %s of %s on network %s is released by name", l.id, strings.Join(texts(l.addresses), " and "), l.segment.Name), "peer", peer.PID, "uid", peer.UID)
	return nil, nil
}

// unheld reports whether the lease is one that no session holds, and that keepers keep: who releases it says that what these have it for is over.
func (l *lease) unheld() bool { return l.state == dying || l.state == orphaned && !l.stranded }

// ownLocked returns a lease of the caller's session.
func (s *Server) ownLocked(ctx context.Context, id string) (*holder, *lease, error) {
	h := s.holders[services.FromContext(ctx)]
	l := s.leases[id]
	if l != nil && l.state != taken && !s.sees(ctx, l) {
		return nil, nil, s.notPermitted("lease " + id)
	}
	if h == nil || l == nil || l.holder != h || l.state != held {
		return nil, nil, wire.Errorf(wire.NotFound, "this session holds no lease %s", id)
	}
	return h, l, nil
}

// withdraw serves network.MethodWithdraw: its caller has never seen the lease, so no witness keeps it.
func (s *Server) withdraw(ctx context.Context, r network.Withdrawal) error {
	s.mu.Lock()
	defer s.unlock()
	h := s.holders[services.FromContext(ctx)]
	if h == nil {
		return nil
	}
	for _, l := range slices.Clone(h.leases) {
		if l.token == r.Token {
			l.why = network.WhyWithdrawn
			s.endLocked(l)
			s.changedLocked(h)
		}
	}
	return nil
}

// withdrawUnanswered ends leases that were recorded and whose replies were lost with their session: the caller's user has them by these tokens, no session holds them,
// and nobody knows of them. It is recorded when it returns: a lease that an instance after this one found again nobody would withdraw any more.
func (s *Server) withdrawUnanswered(ctx context.Context, tokens []string) error {
	if len(tokens) == 0 {
		return nil
	}
	s.ask() // a session that is over holds none; it fails only where the Server is closed
	uid := services.FromContext(ctx).Peer().UID
	unanswered := s.all(func(l *lease) bool { return l.unheld() && l.client.UID == uid && slices.Contains(tokens, l.token) })
	s.mu.Lock()
	unanswered = slices.DeleteFunc(unanswered, func(l *lease) bool { return !l.unheld() }) // taken back or over meanwhile
	for _, l := range unanswered {
		l.why = network.WhyWithdrawn
		s.endLocked(l)
	}
	s.unlock()
	for _, l := range unanswered {
		if err := s.record.append(ctx, func() entry { return entry{Kind: entryFree, Lease: l.id} }); err != nil {
			return wire.Errorf(wire.Unavailable, "cannot record that a lease was withdrawn: %v", err)
		}
	}
	return nil
}

// addWitness serves network.MethodWitness.
func (s *Server) addWitness(ctx context.Context, r network.WitnessRequest) (any, error) {
	s.mu.Lock()
	h, _, err := s.ownLocked(ctx, r.Lease)
	s.mu.Unlock()
	if err != nil {
		r.Witness.Close()
		return nil, err
	}
	k, err := s.witness(h, r.Witness)
	if err != nil {
		return nil, err
	}
	l, added, err := s.attach(ctx, r.Lease, k)
	if err != nil || !added {
		return nil, err
	}
	if err := s.record.append(ctx, func() entry { return entry{Kind: entryWitness, Lease: l.id, Process: k.id, Space: k.space} }); err != nil {
		s.mu.Lock()
		l.keepers = slices.DeleteFunc(l.keepers, func(other *keeper) bool { return other == k })
		s.dropLocked(k, l)
		if l.state == dying && len(l.keepers) == 0 {
			s.endLocked(l)
		}
		s.unlock()
		return nil, wire.Errorf(wire.Unavailable, "cannot record the witness: %v", err)
	}
	return nil, nil
}

// attach makes k a witness of a lease of the caller's, unless that process is one already. Otherwise k is let go.
func (s *Server) attach(ctx context.Context, id string, k *keeper) (l *lease, added bool, err error) {
	s.mu.Lock()
	defer s.unlock()
	defer s.releaseLocked(k)
	_, l, err = s.ownLocked(ctx, id)
	switch {
	case err != nil:
	case k.gone:
		err = wire.Errorf(wire.NotFound, "the witness is gone")
	case slices.ContainsFunc(l.keepers, k.same):
	case len(l.keepers) >= network.MaxWitnesses:
		err = wire.Errorf(wire.OverQuota, "lease %s has %d witnesses, which is the limit", id, network.MaxWitnesses)
	default:
		l.keep(k)
		added = true
	}
	return l, added, err
}

// list serves network.MethodLeases: the caller gets those that it may see.
func (s *Server) list(ctx context.Context, r network.ListRequest) (network.LeasePage, error) {
	s.ask() // what is shown is what the kernel says now; it fails only where the Server is closed
	if err := s.checkNetwork(r.Network); err != nil {
		return network.LeasePage{}, err
	}
	leases := s.all(func(l *lease) bool {
		return l.id > r.After && l.state != taken && s.sees(ctx, l) && (r.Network == "" || r.Network == l.segment.Name) && (r.Session == "" || r.Session == l.session)
	})
	slices.SortFunc(leases, func(a, b *lease) int { return strings.Compare(a.id, b.id) })
	return s.page(leases), nil
}

// page returns as many leases of a list as one page has. Those that are over meanwhile are left out.
func (s *Server) page(leases []*lease) network.LeasePage {
	page := network.LeasePage{Leases: []network.LeaseInfo{}}
	size := 0
	for some := range slices.Chunk(leases, walkStep) {
		for _, info := range s.infos(some) {
			if size += sizeOf(info); len(page.Leases) == network.MaxPage || size > maxPageSize && len(page.Leases) > 0 {
				page.Next = page.Leases[len(page.Leases)-1].ID
				return page
			}
			page.Leases = append(page.Leases, info)
		}
	}
	return page
}

// infos describes those leases that are not over.
func (s *Server) infos(leases []*lease) (infos []network.LeaseInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range leases {
		if l.state != over {
			infos = append(infos, l.info())
		}
	}
	return infos
}

// maxPageSize is about how large a page may become, in bytes: below wire.MaxLarge.
const maxPageSize = 3 << 20

// sizeOf returns about how many bytes a lease has in a page, rather too many than too few.
func sizeOf(l network.LeaseInfo) int {
	n := 768 + len(l.Hostname) + 32*len(l.Witnesses) // what else there is has a bound that is below
	for _, a := range l.Aliases {
		n += len(a) + 8
	}
	return n
}

// lookup serves network.MethodLookup.
func (s *Server) lookup(ctx context.Context, r network.LookupRequest) (network.LeaseInfo, error) {
	host, err := network.CanonicalHostname(r.Hostname)
	if err != nil {
		return network.LeaseInfo{}, err
	}
	s.watch.Ask()
	s.mu.Lock()
	defer s.mu.Unlock()
	g, err := s.segmentLocked(r.Network)
	if err != nil {
		return network.LeaseInfo{}, err
	}
	l := g.names[host]
	switch {
	case l == nil || l.state == taken:
		return network.LeaseInfo{}, wire.Errorf(wire.NotFound, "nobody on network %s has the hostname %s", g.Name, host)
	case !s.sees(ctx, l):
		return network.LeaseInfo{}, s.notPermitted(fmt.Sprintf("hostname %s on network %s", host, g.Name))
	}
	return l.info(), nil
}

// networks serves network.MethodNetworks.
func (s *Server) networks(ctx context.Context, _ struct{}) (network.NetworkList, error) {
	s.awaitLook(ctx)
	s.watch.Ask()
	s.mu.Lock()
	defer s.mu.Unlock()
	list := network.NetworkList{Networks: []network.NetworkInfo{}}
	for _, name := range slices.Sorted(maps.Keys(s.segments)) {
		list.Networks = append(list.Networks, s.infoLocked(s.segments[name]))
	}
	return list, nil
}

// checkNetwork fails if there is no network of a name, which stands for all of them if it is empty.
func (s *Server) checkNetwork(name string) (err error) {
	if name != "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, err = s.segmentLocked(name)
	}
	return err
}

// unknownNetwork says which networks there are instead.
func unknownNetwork(name string, there map[string]*segment) error {
	names := slices.Sorted(maps.Keys(there))
	if meant := nearest.Question(name, names); meant != "" {
		return wire.Errorf(wire.NotFound, "no network %s%s", name, meant)
	}
	return wire.Errorf(wire.NotFound, "no network %s: there is %s", name, strings.Join(names[:min(len(names), maxNamed)], ", "))
}
