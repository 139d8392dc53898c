package server

import (
	"cmp"

	"github.com/fairlead-dev/fairlead/wire"
)

// Limits bound how many leases there may be. How many a network may have is the network's.
type Limits struct {
	// Session is how many a session may hold; zero: 256.
	Session int
	// UID is how many a user may have on all networks, also those that are dying or orphaned; zero: 16,384. Root and the uid that the Server runs as have no such
	// limit.
	UID int
}

func (l Limits) withDefaults() Limits {
	return Limits{Session: cmp.Or(l.Session, 256), UID: cmp.Or(l.UID, 16384)}
}

// overQuotaLocked says which limit a further lease would be over, and nil if it is none.
func (s *Server) overQuotaLocked(w *wish) error {
	g, limits, uid := w.segment, s.limits, w.holder.client.UID
	switch {
	case len(w.holder.leases) >= limits.Session:
		return wire.Errorf(wire.OverQuota, "this session holds %d leases, and the limit of a session is %d", len(w.holder.leases), limits.Session)
	case uid != 0 && uid != s.uid && s.byUID[uid] >= limits.UID:
		return wire.Errorf(wire.OverQuota, "uid %d has %d leases, and the limit of a user is %d", uid, s.byUID[uid], limits.UID)
	case g.count >= g.MaxLeases:
		return wire.Errorf(wire.OverQuota, "network %s has %d leases, and its limit is %d", g.Name, g.count, g.MaxLeases)
	}
	return nil
}
