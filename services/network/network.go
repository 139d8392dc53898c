// Package network is the client's side of the network service: requests, leases and their lists.
//
// A lease is held by the session that allocated it, and ends with it; a witness, a process or a network namespace, keeps it for longer. A container runtime opens a session
// with Endpoint, calls Allocate, and ends its container when the lease is over:
//
//	session, err := client.Dial(ctx, network.Endpoint, client.Options{})
//	lease, err := network.Allocate(ctx, session, network.Request{Hostname: "web"})
//	<-lease.Done() // lease.Err() says why
package network

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/fairlead-dev/fairlead/client"
)

// Release ends a lease that no session holds: one that a witness or a former holder keeps, although that lives. Whoever does so knows that nobody uses its
// address any more. The caller must be root, have the uid that the network service runs as, or have the holder's. It fails with wire.NotFound for a lease that is
// over, with wire.NotPermitted for another user's and for one that a session holds, or as Session.Call does. What a session holds, Lease.Release gives back.
func Release(ctx context.Context, session *client.Session, id string) error {
	return session.Call(ctx, MethodEvict, LeaseRef{Lease: id}, nil)
}

// List returns the leases that request asks for, by network and address. A lease that is there all the while is in the list once; others may be.
// It fails with wire.NotFound for an unknown network, or as Session.Call does.
func List(ctx context.Context, session *client.Session, request ListRequest) ([]LeaseInfo, error) {
	var all []LeaseInfo
	for {
		page, err := client.Call[LeasePage](ctx, session, MethodLeases, request)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Leases...)
		if page.Next == "" || page.Next <= request.After {
			break
		}
		request.After = page.Next
	}
	slices.SortFunc(all, func(a, b LeaseInfo) int {
		return cmp.Or(cmp.Compare(a.Network, b.Network), firstAddress(a).Compare(firstAddress(b)), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

// firstAddress returns the first address of a lease, which has been checked.
func firstAddress(l LeaseInfo) netip.Addr {
	return netip.MustParsePrefix(l.Addresses[0]).Addr()
}

// Lookup returns the lease that has a hostname on a network; empty is DefaultNetwork. It fails with wire.NotFound, or as Session.Call does.
func Lookup(ctx context.Context, session *client.Session, network, hostname string) (LeaseInfo, error) {
	return client.Call[LeaseInfo](ctx, session, MethodLookup, LookupRequest{Network: network, Hostname: hostname})
}

// Networks returns all networks, by name. It fails as Session.Call does.
func Networks(ctx context.Context, session *client.Session) ([]NetworkInfo, error) {
	list, err := client.Call[NetworkList](ctx, session, MethodNetworks, struct{}{})
	return list.Networks, err
}
