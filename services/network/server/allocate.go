package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/services"
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
func (s *Server) allocate(ctx context.Context, r network.AllocateRequest) (network.LeaseInfo, error) {
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
	info := l.info()
	info.Broker = s.conf.Socket
	return info, nil
}

// wish makes a wish of a request. The request's descriptor is its from then on, also when it fails.
func (s *Server) wish(ctx context.Context, r network.AllocateRequest) (*wish, error) {
	w, err := s.plainWish(ctx, r)
	if r.Witness == nil {
		return w, err
	}
	if err != nil {
		r.Witness.Close()
		return nil, err
	}
	w.witness, err = s.witness(w.holder, r.Witness)
	return w, err
}

// plainWish makes a wish without a witness.
func (s *Server) plainWish(ctx context.Context, r network.AllocateRequest) (*wish, error) {
	g, err := s.segment(r.Network)
	if err != nil {
		return nil, err
	}
	host, err := network.CanonicalHostname(r.Hostname)
	if err != nil {
		return nil, err
	}
	h, err := s.holder(services.FromContext(ctx))
	if err != nil {
		return nil, err
	}
	return &wish{holder: h, segment: g, hostname: host, token: r.Token}, nil
}

// hold records a lease that was taken, after which it is held. If that fails, or nobody waits for it any more, it is over.
func (s *Server) hold(ctx context.Context, l *lease) error {
	s.mu.Lock()
	e := l.entry()
	s.mu.Unlock()
	recordErr := s.record.append(ctx, e)
	s.mu.Lock()
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
	}
	if err != nil {
		s.endLocked(l)
	}
	h := l.holder
	s.unlock()
	if err == nil {
		s.tellFacts(h)
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
		if err := s.watch.Ask(); err != nil {
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

// refusalLocked says why a wish is not fulfilled.
func (s *Server) refusalLocked(w *wish, o *obstacle) error {
	g := w.segment
	switch {
	case o.gone && w.holder.gone:
		return w.holder.errLocked()
	case o.gone:
		return wire.Errorf(wire.NotFound, "the witness has exited")
	case o.other != nil && o.passing:
		e := wire.Errorf(wire.Unavailable, "hostname %s on network %s is not free yet: %s", w.hostname, g.Name, o.other.describe())
		e.Holder = o.other.wireHolder()
		return e
	case o.other != nil:
		e := wire.Errorf(wire.Conflict, "hostname %s on network %s is held by process %d (uid %d) with lease %s",
			w.hostname, g.Name, o.other.client.PID, o.other.client.UID, o.other.id)
		e.Holder = o.other.wireHolder()
		return e
	case o.doubt:
		return s.doubtLocked(g)
	case o.passing:
		return s.busyLocked(g)
	}
	return wire.Errorf(wire.Exhausted, "network %s has no free address: all %d of %v are held", g.Name, g.pool.Size(), g.Prefix)
}

// maxNamed is how many of those that are in the way are named in an error.
const maxNamed = 8

// doubtLocked says who keeps everything that is not known from being given out.
func (s *Server) doubtLocked(g *segment) error {
	var pids []string
	for k := range s.doubt.suspects {
		pids = append(pids, fmt.Sprint(k.id.PID))
	}
	who := "they are being looked for"
	if len(pids) > 0 {
		slices.Sort(pids)
		who = "process " + some(pids)
	}
	why := ""
	if s.doubt.reason != nil {
		why = fmt.Sprintf(" (%v)", s.doubt.reason)
	}
	return wire.Errorf(wire.Unavailable, "network %s gives no address out before the processes that could hold one are gone: %s%s", g.Name, who, why)
}

// busyLocked says which leases are about to be free.
func (s *Server) busyLocked(g *segment) error {
	var names []string
	var first *lease
	for _, l := range s.leases {
		if l.segment == g && (l.state == dying || l.state == orphaned) {
			names = append(names, l.describe())
			if first == nil || l.id < first.id {
				first = l
			}
		}
	}
	slices.Sort(names)
	e := wire.Errorf(wire.Unavailable, "network %s has no free address yet: %s", g.Name, some(names))
	if first != nil {
		e.Holder = first.wireHolder()
	}
	return e
}

// some joins the first few names, and counts the others.
func some(names []string) string {
	more := len(names) - maxNamed
	if more <= 0 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
}

// describe names a lease that is dying or orphaned, and the processes that keep it.
func (l *lease) describe() string {
	var pids []string
	for _, k := range l.keepers {
		pids = append(pids, fmt.Sprint(k.id.PID))
	}
	slices.Sort(pids)
	if len(pids) == 0 {
		pids = []string{fmt.Sprint(l.client.PID)}
	}
	return fmt.Sprintf("lease %s of %v is %s and kept by process %s", l.id, l.addresses[0], shown[l.state], some(pids))
}
