package server

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// inspect serves network.MethodInspect.
func (s *Server) inspect(ctx context.Context, r network.InspectRequest) (network.LeaseInfo, error) {
	s.watch.Ask() // what is shown is what the kernel says now; it fails only where the Server is closed
	s.mu.Lock()
	defer s.mu.Unlock()
	found, what, err := s.findLocked(r)
	if err != nil {
		return network.LeaseInfo{}, err
	}
	var seen []*lease
	var names []string
	for _, l := range found {
		if s.sees(ctx, l) {
			seen, names = append(seen, l), append(names, l.segment.Name)
		}
	}
	switch {
	case len(seen) == 1:
		return seen[0].info(), nil
	case len(seen) > 1:
		return network.LeaseInfo{}, wire.Errorf(wire.Conflict, "%d networks have a %s: name one of %s", len(seen), what, strings.Join(names[:min(len(names), maxNamed)], ", "))
	case len(found) > 0:
		return network.LeaseInfo{}, s.notPermitted(what)
	}
	return network.LeaseInfo{}, wire.Errorf(wire.NotFound, "there is no lease: nobody has %s", what)
}

// findLocked returns the leases that a request names, by network, and how it does so.
func (s *Server) findLocked(r network.InspectRequest) (found []*lease, what string, err error) {
	switch {
	case r.Lease != "":
		what = "lease " + r.Lease
		found = append(found, s.leases[r.Lease])
	case r.Address != "":
		addr, err := netip.ParseAddr(r.Address)
		if err != nil {
			return nil, "", err
		}
		what = "address " + addr.String()
		for _, g := range s.segments {
			found = append(found, g.addrs[addr])
		}
	default:
		host, err := network.CanonicalHostname(r.Hostname)
		if err != nil {
			return nil, "", err
		}
		what = "hostname " + host
		for _, name := range slices.Sorted(maps.Keys(s.segments)) {
			found = append(found, s.segments[name].names[host])
		}
	}
	if r.Network != "" {
		if _, err := s.segmentLocked(r.Network); err != nil {
			return nil, "", err
		}
		what += " on network " + r.Network
	}
	found = slices.DeleteFunc(found, func(l *lease) bool {
		return l == nil || l.state == taken || r.Network != "" && l.segment.Name != r.Network
	})
	return found, what, nil
}

// reload serves network.MethodReload.
func (s *Server) reload(ctx context.Context, _ struct{}) (network.Reloaded, error) {
	if !s.operates(ctx) {
		return network.Reloaded{}, wire.Errorf(wire.NotPermitted, "uid %d may not reload the networks: root and uid %d may", services.FromContext(ctx).Peer().UID, s.uid)
	}
	n, err := s.Renew()
	return network.Reloaded{Networks: n}, err
}

// Renew loads the networks as Config.Load does and has them as Reload does. It returns how many there are. It fails with wire.Unsupported where there is nothing to
// load, with wire.Malformed where that fails, or as Reload does.
func (s *Server) Renew() (int, error) {
	if s.conf.Load == nil {
		return 0, wire.Errorf(wire.Unsupported, "this network service has nothing to read its networks from")
	}
	s.renewing.Lock()
	defer s.renewing.Unlock()
	networks, limits, err := s.conf.Load()
	if err != nil {
		return 0, wire.Errorf(wire.Malformed, "the networks stay as they are: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	changed, err := s.replace(networks, limits)
	if err != nil {
		return 0, err
	}
	if changed {
		s.log.Info(fmt.Sprintf("networks reloaded: there are %d", len(networks)))
	} else { // as when an operator has asked, and then the broker
		s.log.Debug(fmt.Sprintf("networks reloaded: there are %d, as before", len(networks)))
	}
	return len(networks), nil
}
