package network

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
)

const (
	reclaimFirst = 10 * time.Millisecond // the pause after the first attempt that failed
	reclaimMost  = 200 * time.Millisecond
)

// Reclaim takes a lease back whose session is lost, on a session of its own that o opens, and gives it the witness again, if that is not nil. The lease is as it
// was: it has the same id, addresses, MAC and names. The session is the caller's to close. It tries again as long as the network service is lost, is being
// started or cannot answer yet, until ctx ends. It fails as Allocate does.
func Reclaim(ctx context.Context, lost *Lease, witness *os.File, o client.Options) (*Lease, *client.Session, error) {
	if lost.Claim() == (Claim{}) {
		return nil, nil, wire.Errorf(wire.Unsupported, "reclaim lease %s: the network service told no secret with it", lost.ID)
	}
	for pause := reclaimFirst; ; pause = min(2*pause, reclaimMost) {
		l, s, err := reclaim(ctx, lost, witness, o)
		if err == nil {
			return l, s, nil
		}
		if !passing(err) || ctx.Err() != nil {
			return nil, nil, fmt.Errorf("reclaim lease %s: %w", lost.ID, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("reclaim lease %s: %w: %w", lost.ID, context.Cause(ctx), err)
		}
	}
}

// reclaim tries once.
func reclaim(ctx context.Context, lost *Lease, witness *os.File, o client.Options) (*Lease, *client.Session, error) {
	s, err := client.Dial(ctx, Endpoint, o)
	if err != nil {
		return nil, nil, err
	}
	l, err := Allocate(ctx, s, Request{Reclaim: lost.Claim(), Witness: witness})
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return l, s, nil
}

// passing reports whether another attempt may succeed.
func passing(err error) bool {
	switch wire.CodeOf(err) {
	case wire.Interrupted, wire.Terminating, wire.Unavailable, wire.OverQuota, wire.StartFailed, wire.StartTimeout, wire.Suspended:
		return true
	}
	return false
}
