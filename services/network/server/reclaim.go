package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"slices"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// newSecret returns what proves that one held a lease: 128 random bits.
func newSecret() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// proofOf returns what is kept of a secret, from which nobody gets that again.
func proofOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// reclaim serves a network.MethodAllocate that takes a lease back. It is held by the new session first and recorded then, and nothing that kept it before is let
// go until it is: should that fail, or this instance die, the lease goes on as it was.
func (s *Server) reclaim(ctx context.Context, r network.AllocateRequest) (network.LeaseInfo, error) {
	h, err := s.holder(services.FromContext(ctx))
	var k *keeper
	if r.Witness != nil {
		if err != nil {
			r.Witness.Close()
		} else {
			k, err = s.witness(h, r.Witness)
		}
	}
	if err != nil {
		return network.LeaseInfo{}, err
	}
	if err := s.ask(); err != nil { // whether the session before is over, the kernel says
		return network.LeaseInfo{}, wire.Errorf(wire.Terminating, "the network service is being stopped")
	}
	s.mu.Lock()
	former := process.ID{}
	l, err := s.reclaimLocked(h, k, r)
	if err == nil {
		former, l.former = l.former, h.id
	}
	if k != nil {
		s.releaseLocked(k) // unless the lease has it
	}
	s.unlock()
	if err != nil {
		return network.LeaseInfo{}, err
	}
	return s.settle(h, l, former, r.Secret, s.record.append(ctx, func() entry { return s.line(l) }))
}

// reclaimLocked gives a lease that no session holds to h, with k as a further witness, if that is not nil. A session that holds it already gets it again.
func (s *Server) reclaimLocked(h *holder, k *keeper, r network.AllocateRequest) (*lease, error) {
	l := s.leases[r.Reclaim]
	switch {
	case h.gone:
		return nil, h.errLocked()
	case l == nil || l.state == taken || l.stranded:
		return nil, wire.Errorf(wire.NotFound, "there is no lease %s to reclaim: it is over", r.Reclaim)
	case h.client.UID != l.client.UID:
		return nil, wire.Errorf(wire.NotPermitted, "lease %s is another user's: only its own uid reclaims it", l.id)
	case l.proof == "" || subtle.ConstantTimeCompare([]byte(proofOf(r.Secret)), []byte(l.proof)) != 1:
		return nil, wire.Errorf(wire.NotPermitted, "the secret proves nothing about lease %s", l.id)
	case l.cut:
		return nil, wire.Errorf(wire.Conflict, "lease %s has lost an address or a name, because the networks have changed", l.id)
	case l.holder != nil && l.holder != h:
		e := wire.Errorf(wire.Conflict, "lease %s is held by process %d (uid %d)", l.id, l.client.PID, l.client.UID)
		e.Holder = l.wireHolder()
		return nil, e
	case l.holder == nil && len(h.leases) >= s.limits.Session:
		return nil, wire.Errorf(wire.OverQuota, "this session holds %d leases, and the limit of a session is %d", len(h.leases), s.limits.Session)
	}
	if l.holder == nil && l.former != h.id && len(l.keepers) > network.MaxWitnesses { // the former holder would be one witness too many
		return nil, wire.Errorf(wire.OverQuota, "lease %s has %d witnesses beside its former holder, which lives: that is the limit", l.id, network.MaxWitnesses)
	}
	if err := l.admit(k); err != nil {
		return nil, err
	}
	if l.holder == nil {
		l.holder, l.from, l.session, l.client, l.token = h, h, h.session.ID(), h.client, ""
		h.leases = append(h.leases, l)
		s.moveLocked(l, held)
	}
	return l, nil
}

// admit makes k a witness, unless it is nil or one already.
func (l *lease) admit(k *keeper) error {
	switch {
	case k == nil:
	case k.gone:
		return wire.Errorf(wire.NotFound, "the witness is gone")
	case slices.ContainsFunc(l.keepers, k.same):
	case len(l.keepers) >= network.MaxWitnesses:
		return wire.Errorf(wire.OverQuota, "lease %s has %d witnesses, which is the limit", l.id, len(l.keepers))
	default:
		l.keep(k)
	}
	return nil
}

// settle answers who has reclaimed a lease, once it was tried to record that. A former holder that is the new one keeps the lease no more: its session does. Any
// other one does until it has exited, as a witness.
func (s *Server) settle(h *holder, l *lease, former process.ID, secret string, recordErr error) (network.LeaseInfo, error) {
	s.mu.Lock()
	ours := l.holder == h && l.state == held
	switch {
	case !ours: // what ended it may have been written before the hold was
		if l.state == over {
			s.record.soon(entry{Kind: entryFree, Lease: l.id})
		} else if l.holder == nil {
			s.record.soon(entry{Kind: entryLeave, Lease: l.id})
		}
	case recordErr != nil:
		s.leaveLocked(l)
	default:
		if i := slices.IndexFunc(l.keepers, func(k *keeper) bool { return k.id == former && former == h.id }); i >= 0 {
			k := l.keepers[i]
			l.keepers = slices.Delete(l.keepers, i, i+1)
			s.dropLocked(k, l)
		}
		s.changedLocked(h)
	}
	info := l.reply(secret, s.conf.Socket)
	s.unlock()
	switch {
	case !ours:
		return network.LeaseInfo{}, wire.Errorf(wire.Interrupted, "the session ended, or gave lease %s back, while it was reclaimed", l.id)
	case recordErr != nil:
		return network.LeaseInfo{}, wire.Errorf(wire.Unavailable, "cannot record that lease %s was reclaimed: %v", l.id, recordErr)
	}
	return info, nil
}
