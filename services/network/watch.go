package network

import (
	"context"
	"iter"
	"net/netip"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
)

// The kinds of changes.
const (
	ChangePresent   = "present"   // no change: a lease of the list that comes first
	ChangeSynced    = "synced"    // no change: the list, or what is kept, and all that has changed up to Seq, is told
	ChangeDropped   = "dropped"   // changes were forgotten before they could be sent: what was told counts for nothing, and a list follows
	ChangeAllocated = "allocated" // a session holds it
	ChangeReclaimed = "reclaimed" // it was orphaned, and a session holds it again
	ChangeDying     = "dying"     // its session is over or gave it back, and a witness lives
	ChangeOrphaned  = "orphaned"  // the network service is being stopped
	ChangeReleased  = "released"  // it is over
	ChangeCooling   = "cooling"   // it is over, and its addresses are in quarantine; behind released
)

// Why a lease is dying or over.
const (
	WhySession   = "session"   // its session is over
	WhyReleased  = "released"  // its session gave it back
	WhyWithdrawn = "withdrawn" // its session had never seen it
	WhyWitness   = "witness"   // the last that it hung on beside a session, a witness or its former holder, is gone
	WhyOperator  = "operator"  // somebody released it while no session held it
)

// StateOver is the state of a lease in a Change after which it is none.
const StateOver = "over"

// A Change is something that has happened to a lease, or a part of the list that comes before. It has the fields of its kind.
type Change struct {
	Seq     int64      `msgpack:"q" json:"seq"` // from 1 on, since the service started; not everybody sees all. Of present and synced: the last one; of dropped: the last that is missing
	At      wire.Time  `msgpack:"a" json:"at"`
	Kind    string     `msgpack:"k" json:"kind"`                        // Change…
	Why     string     `msgpack:"w,omitempty" json:"why,omitempty"`     // dying, released: Why…
	Lease   *LeaseInfo `msgpack:"l,omitempty" json:"lease,omitempty"`   // all but synced and dropped: as it is from then on
	Until   wire.Time  `msgpack:"u,omitempty" json:"until,omitzero"`    // cooling
	Dropped int64      `msgpack:"y,omitempty" json:"dropped,omitempty"` // dropped: how many, also of leases that the caller may not see
}

// Validate checks a Change that was received. Kinds of later versions pass.
func (c *Change) Validate() error {
	if c.Kind == "" || len(c.Kind) > 32 || len(c.Why) > 32 || c.Seq < 0 || c.Dropped < 0 {
		return wire.Errorf(wire.Malformed, "change %d of kind %q", c.Seq, wire.Printable(c.Kind, 32))
	}
	if c.Lease != nil {
		return c.Lease.Validate()
	}
	switch c.Kind {
	case ChangePresent, ChangeAllocated, ChangeReclaimed, ChangeDying, ChangeOrphaned, ChangeReleased, ChangeCooling:
		return wire.Errorf(wire.Malformed, "change %d: %s of no lease", c.Seq, c.Kind)
	}
	return nil
}

// A WatchRequest asks for the leases of one network, or of all if Network is empty, and for what happens to them.
type WatchRequest struct {
	Network string `msgpack:"n,omitempty"`
	// NoList asks for changes alone: those from Since on that are kept, then ChangeSynced, and then what comes. The last 4096 changes are
	// kept since the service began; the At of ChangeSynced is how far back that goes. Behind ChangeDropped no list follows. Since 0: none but what comes.
	NoList bool      `msgpack:"l,omitempty"`
	Since  wire.Time `msgpack:"s,omitempty"`
}

// Validate checks a WatchRequest that was received.
func (r *WatchRequest) Validate() error {
	if r.Since < 0 || r.Since != 0 && !r.NoList {
		return wire.Errorf(wire.Malformed, "watch leases since %d: want a time, without a list", r.Since)
	}
	return checkNames("watch leases", r.Network, "")
}

// Watch tells the leases that request asks for and that the caller may see, and then every change, until ctx or the session ends or the loop is left.
//
// First comes each lease as ChangePresent; what changes meanwhile may come among that and twice. With ChangeSynced the list is that of one moment, and from then on
// every change comes once, in order. One who is too slow holds up nobody: ChangeDropped says how many changes are missing, and the list begins anew.
// The last pair has the error, which is that of Session.OpenStreaming or of the call's end; wire.NotFound is an unknown network.
func Watch(ctx context.Context, session *client.Session, request WatchRequest) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		changes, err := client.OpenStreaming[Change, struct{}](ctx, session, MethodWatch, request)
		if err != nil {
			yield(Change{}, err)
			return
		}
		defer changes.Close()
		changes.All()(yield)
	}
}

// An InspectRequest asks for one lease, by exactly one of its id, an address and a name.
type InspectRequest struct {
	Lease    string `msgpack:"l,omitempty"`
	Address  string `msgpack:"a,omitempty"` // without prefix length
	Hostname string `msgpack:"h,omitempty"` // or an alias
	Network  string `msgpack:"n,omitempty"` // on which it is; empty: on any
}

// Validate checks an InspectRequest that was received.
func (r *InspectRequest) Validate() error {
	given := 0
	for _, text := range []string{r.Lease, r.Address, r.Hostname} {
		if text != "" {
			given++
		}
	}
	switch {
	case given != 1:
		return wire.Errorf(wire.Malformed, "inspect a lease: %d of id, address and hostname are given: give one", given)
	case r.Lease != "":
		if err := CheckLeaseID(r.Lease); err != nil {
			return err
		}
	case r.Address != "":
		if _, err := ParseAddresses([]string{r.Address}); err != nil {
			return err
		}
	}
	return checkNames("inspect a lease", r.Network, r.Hostname)
}

// ByName returns a request for the lease that a text names: an address, also with its prefix length as lists show it, the id of a lease, or a hostname. A
// hostname may look like an id: ask for it by Hostname then. It fails with wire.Malformed.
func ByName(network, text string) (InspectRequest, error) {
	r := InspectRequest{Network: network}
	if _, err := netip.ParseAddr(text); err == nil {
		r.Address = text
	} else if prefix, err := netip.ParsePrefix(text); err == nil {
		r.Address = prefix.Addr().String()
	} else if CheckLeaseID(text) == nil {
		r.Lease = text
	} else {
		r.Hostname = text
	}
	return r, r.Validate()
}

// Inspect returns a lease, with what it hangs on. It fails with wire.NotFound, with wire.Conflict for a name that several networks have, with wire.NotPermitted for
// another user's, or as Session.Call does.
func Inspect(ctx context.Context, session *client.Session, request InspectRequest) (LeaseInfo, error) {
	return client.Call[LeaseInfo](ctx, session, MethodInspect, request)
}

// A Reloaded says what a reload has come to.
type Reloaded struct {
	Networks int `msgpack:"n" json:"networks"` // how many there are
}

// Reload has the network service read its networks anew. Root and the uid that it runs as may. It fails with wire.Malformed for a file with a problem, with
// wire.Conflict, naming the lease, for a change that would leave one without its address, with wire.Unavailable while it is not known what is held, or as
// Session.Call does; and then all stays as it is.
func Reload(ctx context.Context, session *client.Session) (Reloaded, error) {
	return client.Call[Reloaded](ctx, session, MethodReload, struct{}{})
}
