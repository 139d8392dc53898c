package broker

import (
	"context"
	"fmt"

	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/wire"
)

// start has the service begin a life for a command, and returns when it has registered. One that is being stopped, or has ended, is followed by the next. It fails as the
// start does, or when ctx ends.
func (s *service) start(ctx context.Context, cause Cause) error {
	return s.startNext(ctx, cause, false)
}

// startNext is start. With anew an instance that is there is stopped first, if another can follow.
func (s *service) startNext(ctx context.Context, cause Cause, anew bool) error {
	for ; ; anew = false {
		s.mu.Lock()
		l := s.life
		if anew && l != nil {
			if err := s.startableLocked(); err != nil {
				s.mu.Unlock()
				return err
			}
			l.askLocked()
		}
		if l == nil || !l.stopping && !l.hasEnded() {
			err := s.beginLocked(cause)
			l = s.life
			s.mu.Unlock()
			if err != nil {
				return err
			}
			return l.await(ctx)
		}
		l.again = &cause
		s.mu.Unlock()
		select {
		case <-l.over:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s to stop: %w", s.name, ctx.Err())
		}
		s.mu.Lock()
		dropped := l.again == nil
		s.mu.Unlock()
		if dropped {
			return wire.Errorf(wire.Terminating, "%s was stopped by a later command", s.name)
		}
	}
}

// stop has the service's instance stop, and returns when the last of its processes is gone. It is not kept alive then, nor started at load by the next
// broker. Opens that wait have the next one started.
func (s *service) stop(ctx context.Context, by Cause) error {
	s.mu.Lock()
	s.stopped = &by
	if len(s.queue) == 0 {
		s.unscheduleLocked()
	}
	l := s.life
	if l != nil {
		l.again = nil
		l.askLocked()
	} else {
		s.changedLocked()
	}
	s.mu.Unlock()
	s.remember()
	if l == nil {
		return nil
	}
	select {
	case <-l.over:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop %s: %w", s.name, ctx.Err())
	}
}

// restart stops the service's instance, if it has one, and starts the next. It returns when that has registered. An instance that nothing could follow is left alone.
func (s *service) restart(ctx context.Context, cause Cause) error {
	return s.startNext(ctx, cause, true)
}

// reset lifts a suspension and forgets the failures.
func (s *service) reset() {
	defer s.remember()
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.keptAliveLocked()
	s.health.reset()
	s.suspect = suspect{}
	if s.life == nil {
		s.rescheduleLocked(kept)
	}
	s.changedLocked()
}

// rescheduleLocked has a life begin, of a service that has none, when those who wait or, if it is kept alive, the service itself may have it.
func (s *service) rescheduleLocked(kept bool) {
	s.unscheduleLocked()
	switch w := s.headLocked(); {
	case w != nil:
		if err := s.beginLocked(w.cause()); err != nil {
			s.failLocked(err)
		}
		s.impatientLocked()
	case kept:
		s.laterLocked(keptAlive(), later(s.health.Suspended, s.health.again(s.def.ThrottleInterval)))
	}
}

// wait returns when the service has an instance that takes sessions, or when ctx ends.
func (s *service) wait(ctx context.Context) error {
	for {
		s.mu.Lock()
		takes, changed, state := s.takesLocked(), s.changed, s.stateLocked()
		s.mu.Unlock()
		if takes {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s, which is %s: %w", s.name, state, ctx.Err())
		}
	}
}

// close ends the service with its broker. What the broker has not started is left alone, and with leave also the rest.
func (s *service) close(leave bool) {
	s.mu.Lock()
	s.closed = true
	s.unscheduleLocked()
	s.failLocked(s.b.goodbye())
	l := s.life
	if l != nil && !leave && (l.keeper != nil || !l.served) {
		l.askLocked()
	} else {
		l = nil
	}
	s.mu.Unlock()
	if l != nil {
		<-l.over
	}
}

// reload gives the service another definition, which its next start goes by, or with nil takes it out as soon as it has no life.
func (s *service) reload(def *servicefile.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = def == nil
	if def != nil {
		s.def = *def
	}
	if s.life == nil {
		kept := s.keptAliveLocked() || s.timer != nil && s.def.RunAtLoad && !s.removed
		s.rescheduleLocked(s.recalled && kept) // a new one begins with load
	}
	s.changedLocked()
}
