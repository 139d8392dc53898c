package server

import (
	"context"
	"fmt"

	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

// sees reports whether who called may see a lease: root and the uid that this service runs as may see all of them, everybody else those whose holder has the same
// uid. What uids are was told by the kernel.
func (s *Server) sees(ctx context.Context, l *lease) bool {
	return s.seesOf(ctx, l.client.UID)
}

// seesOf is sees of leases whose holder has a uid.
func (s *Server) seesOf(ctx context.Context, uid uint32) bool {
	return s.operates(ctx) || services.FromContext(ctx).Peer().UID == uid
}

// operates reports whether who called is root or the uid that this service runs as.
func (s *Server) operates(ctx context.Context) bool {
	uid := services.FromContext(ctx).Peer().UID
	return uid == 0 || uid == s.uid
}

// notPermitted is the answer to who may not see the lease that what names.
func (s *Server) notPermitted(what string) error {
	who := "root sees"
	if s.uid != 0 {
		who = fmt.Sprintf("root and uid %d see", s.uid)
	}
	return wire.Errorf(wire.NotPermitted, "%s is another user's: only %s the leases of others, and only the session that holds a lease releases it", what, who)
}
