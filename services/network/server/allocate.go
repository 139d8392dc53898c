package server

import (
	"context"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// maxWaiters is how many requests may wait for one network; further ones are answered at once.
	maxWaiters = 1024
	// patience is how long a request without a deadline waits for what is about to be free.
	patience = 10 * time.Second
	// maxMargin is how long before its deadline a request is answered, at most: the answer must arrive in time. It is a tenth of the time there is.
	maxMargin = 200 * time.Millisecond
)

// allocate serves network.MethodAllocate.
func (s *Server) allocate(ctx context.Context, r network.AllocateRequest) (info network.LeaseInfo, err error) {
	began := time.Now()
	switch err = s.withdrawUnanswered(ctx, r.Withdraw); {
	case err != nil:
		r.Witness.Close()
	case r.Reclaim != "":
		info, err = s.reclaim(ctx, r)
	default:
		info, err = s.lease(ctx, r)
	}
	if r.Reclaim != "" {
		s.counters.reclaims.AddOutcome(err)
	} else {
		s.counters.allocated(r.Network, err, time.Since(began))
	}
	return info, err
}

// lease serves a request for a new lease.
func (s *Server) lease(ctx context.Context, r network.AllocateRequest) (network.LeaseInfo, error) {
	w, err := s.wish(ctx, r)
	if err != nil {
		return network.LeaseInfo{}, err
	}
	l, err := s.take(ctx, w)
	if err == nil {
		err = s.hold(ctx, l)
	}
	s.mu.Lock()
	defer s.unlock()
	if w.witness != nil {
		s.releaseLocked(w.witness) // unless a lease has it
	}
	if err != nil {
		return network.LeaseInfo{}, err
	}
	return l.reply(w.secret, s.conf.Socket), nil
}

// hold records a lease that was taken, after which it is held. If that fails, or nobody waits for it any more, it is over.
func (s *Server) hold(ctx context.Context, l *lease) error {
	recordErr := s.record.append(ctx, func() entry { return s.line(l) })
	s.mu.Lock()
	defer s.unlock()
	var err error
	switch {
	case l.state == over:
		err = l.lostLocked()
		s.record.soon(entry{Kind: entryFree, Lease: l.id}) // it may have been written before the hold was
	case ctx.Err() != nil:
		err = ctx.Err()
	case recordErr != nil:
		err = wire.Errorf(wire.Unavailable, "cannot record the lease, so it is not given out: %v", recordErr)
	default:
		s.moveLocked(l, held)
		s.changedLocked(l.holder)
	}
	if err != nil {
		s.endLocked(l)
	}
	return err
}

// lostLocked says why a lease is over that was not held yet.
func (l *lease) lostLocked() error {
	if l.from.gone {
		return l.from.errLocked()
	}
	return wire.Errorf(wire.Canceled, "the request was withdrawn")
}

// A waiter is a request that waits for what is about to be free. Who frees it fulfils the first wish that it can fulfil.
type waiter struct {
	*wish
	served chan *lease // takes one: a lease, or nil to ask again
}

// take fulfils a wish, and waits for that if only the dying and the orphaned are in the way. Nothing is refused because of what the table says
// before the kernel was asked which holders and keepers live.
func (s *Server) take(ctx context.Context, w *wish) (*lease, error) {
	s.mu.Lock()
	l, _ := s.takeLocked(w)
	s.unlock()
	if l != nil {
		return l, nil
	}
	timer := time.NewTimer(timeToWait(ctx))
	defer timer.Stop()
	for late := false; ; {
		if err := s.ask(); err != nil {
			return nil, wire.Errorf(wire.Terminating, "the network service is being stopped")
		}
		l, wait, err := s.takeOrWait(w, late)
		if l != nil || err != nil {
			return l, err
		}
		select {
		case l = <-wait.served:
		case <-timer.C:
			l, late = s.giveUp(wait), true
		case <-ctx.Done():
			if l = s.giveUp(wait); l != nil {
				s.mu.Lock()
				s.endLocked(l)
				s.unlock()
			}
			return nil, ctx.Err()
		}
		if l != nil {
			return l, nil
		}
	}
}

// timeToWait returns how long a request may wait.
func timeToWait(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return patience
	}
	left := time.Until(deadline)
	return left - min(left/10, maxMargin)
}

// takeOrWait fulfils a wish, or has it wait, or says why neither can be.
func (s *Server) takeOrWait(w *wish, late bool) (*lease, *waiter, error) {
	s.mu.Lock()
	defer s.unlock()
	l, o := s.takeLocked(w)
	switch {
	case l != nil:
		return l, nil, nil
	case s.closed:
		return nil, nil, wire.Errorf(wire.Terminating, "the network service is being stopped")
	case !o.passing || late:
		return nil, nil, s.refusalLocked(w, o)
	case len(w.segment.waiters) >= maxWaiters:
		return nil, nil, wire.Errorf(wire.Unavailable, "network %s: %d requests wait for an address already", w.segment.Name, maxWaiters)
	}
	wait := &waiter{wish: w, served: make(chan *lease, 1)}
	w.segment.waiters = append(w.segment.waiters, wait)
	return nil, wait, nil
}

// serveLocked gives what is free to those who wait, in the order they came. Those for whom waiting helps no longer are told to ask again.
func (s *Server) serveLocked(g *segment) {
	waiting := g.waiters
	g.waiters = nil
	var still []*waiter
	for _, w := range waiting {
		l, o := s.takeLocked(w.wish)
		if l == nil && o.passing && !s.closed {
			still = append(still, w)
			continue
		}
		w.served <- l
	}
	g.waiters = append(still, g.waiters...)
}

// giveUp takes a waiter out. It returns the lease that it was given meanwhile, or nil.
func (s *Server) giveUp(w *waiter) *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.segment.waiters = slices.DeleteFunc(w.segment.waiters, func(other *waiter) bool { return other == w })
	select {
	case l := <-w.served:
		return l
	default:
		return nil
	}
}
