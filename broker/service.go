package broker

import (
	"path/filepath"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/broker/keeper"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/wire"
)

// LockPath returns the lock of a service of the broker at a socket. Every instance that the broker starts inherits it locked.
func LockPath(socket, service string) string { return filepath.Join(socket+".d", service+".lock") }

// StateDir returns the folder in which a service of the broker at a socket may keep what its next instance needs.
func StateDir(socket, service string) string { return filepath.Join(socket+".d", service) }

// LogPath returns the log that the broker at a socket has a service's output written to.
func LogPath(socket, service string) string { return filepath.Join(socket+".d", service+".log") }

// A service is a declared service. It has one life at a time, and what wants it to have one:
//
//	no life ── open, run_at_load, keep_alive, command ──▶ a life, at once or when its pause is over
//	a life ── is over ──▶ no life ── opens wait, or it is kept alive ──▶ the next life
//
// A life is an object of its own, so that the late end of an old one cannot touch a new one.
type service struct {
	b    *Broker
	name string
	file recordFile

	mu      sync.Mutex
	def     servicefile.Service // of the next start
	removed bool                // by a reload: it goes with its life
	life    *life               // nil: it has no instance and starts none
	queue   []*waiter           // opens, in the order they came
	passing int                 // opens that have an instance and are being handed over
	timer   *time.Timer         // begins a life when the pause is over; nil: nothing is due
	due     time.Time           // when it does
	stopped *Cause              // the command that stopped it: it is not kept alive until something else starts it
	closed  bool                // the broker is being stopped
	suspect suspect             // the client at the head when instances crashed
	told    string              // the state that was told of last; empty: stopped
	changed chan struct{}       // closed and replaced when the state has changed

	// What is written down:
	recalled bool // it was read
	number   int64
	kept     keeper.Record       // of the last instance
	served   bool                // that has registered
	keptBy   servicefile.Service // what that was started by
	health   health
	cause    Cause // of the last start
	last     Exit  // of the last instance
}

// allow returns who may do what.
func (s *service) allow() servicefile.Allow {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.def.Allow
}

// definition returns what the next start goes by.
func (s *service) definition() servicefile.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.def
}

// changedLocked wakes who waits for the service to change its state, and tells of that.
func (s *service) changedLocked() {
	s.tellStateLocked()
	close(s.changed)
	s.changed = make(chan struct{})
}

// beginLocked has the service begin a life, at once or when its pause is over. It fails if the service is not started by the broker, is suspended, or is
// being stopped for good. A life that is there is left alone.
func (s *service) beginLocked(cause Cause) error {
	now := time.Now()
	if s.life != nil && !s.closed && !s.removed {
		return nil
	}
	if err := s.startableLocked(); err != nil {
		return err
	}
	if s.health.suspended(now) {
		return s.suspendedLocked(now)
	}
	at := time.Time{}
	switch cause.Kind {
	case CauseOpen:
		at = s.health.next(s.def.ThrottleInterval)
	case CauseKeepAlive:
		at = s.health.again(s.def.ThrottleInterval)
	}
	if at.After(now) {
		s.laterLocked(cause, at)
		return nil
	}
	s.startLocked(cause)
	return nil
}

// startableLocked fails if the broker does not start the service at all.
func (s *service) startableLocked() error {
	switch {
	case s.closed:
		return s.b.goodbye()
	case s.removed:
		return wire.Errorf(wire.UnknownEndpoint, "service %s was removed", s.name)
	case len(s.def.Program) == 0:
		return wire.Errorf(wire.Unavailable, "no instance of %s has registered, and its service file has no program for the broker to start", s.name)
	}
	return nil
}

// suspendedLocked is the refusal of a service that fails too often.
func (s *service) suspendedLocked(now time.Time) error {
	e := wire.Errorf(wire.Suspended, "%s has failed %d times in a row and is suspended until %s; 'brokerctl service reset %s' lifts that. The last failure: %s",
		s.name, quickDeaths, s.health.Suspended.Format(time.RFC3339), s.name, s.health.Failure)
	e.Retry = s.health.Suspended.Sub(now)
	return e
}

// laterLocked has a life begin at a time, unless one is to begin earlier.
func (s *service) laterLocked(cause Cause, at time.Time) {
	if s.timer != nil && !at.Before(s.due) {
		return
	}
	s.unscheduleLocked()
	s.due = at
	s.timer = time.AfterFunc(time.Until(at), func() { s.dueNow(cause) })
	s.changedLocked()
}

func (s *service) unscheduleLocked() {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

// dueNow begins the life that a timer was set for.
func (s *service) dueNow(cause Cause) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil || s.closed || s.life != nil {
		return // something else was first
	}
	if rest := time.Until(s.due); rest > 0 { // it was set anew, or the clock was
		s.timer.Reset(rest)
		return
	}
	s.timer = nil
	if cause.Kind == CauseOpen && len(s.queue) == 0 { // those who wanted it have left
		if !s.keptAliveLocked() {
			s.changedLocked()
			return
		}
		cause = keptAlive()
	}
	s.startLocked(cause)
}

// startLocked begins a life at once.
func (s *service) startLocked(cause Cause) {
	s.unscheduleLocked()
	s.stopped = nil
	l := s.newLifeLocked(cause)
	s.health.began(l.begun)
	s.b.counters.services.Of(s.name).starts.Add(cause.Kind)
	s.b.work.Go(l.run)
}

func (s *service) newLifeLocked(cause Cause) *life {
	l := &life{
		s: s, def: s.def, begun: time.Now(), news: make(chan struct{}, 1), asked: make(chan struct{}), hung: make(chan error, 1), settled: make(chan struct{}),
		ending: make(chan struct{}), over: make(chan struct{}),
	}
	s.cause = cause
	s.life = l
	s.changedLocked()
	return l
}

// keptAliveLocked reports whether the service is to be started again by how its last instance has ended.
func (s *service) keptAliveLocked() bool {
	if s.stopped != nil || s.removed || s.closed || len(s.def.Program) == 0 {
		return false
	}
	switch s.def.KeepAlive {
	case servicefile.Always:
		return true
	case servicefile.OnFailure:
		return s.health.Failed || s.last.Status == unknown
	case servicefile.OnCrash:
		return s.health.Failed && s.last.Signal != ""
	}
	return false
}

// ended notes that a life is over, and how: failure is nil if that is as it should be. What waits for the service then has it started again, or is told why
// not.
func (s *service) ended(l *life, exit Exit, failure error) {
	s.mu.Lock()
	if s.life != l { // another process has registered meanwhile
		close(l.over)
		s.mu.Unlock()
		return
	}
	suspended := s.judgeLocked(l, exit, failure)
	s.mu.Unlock()
	if !suspended.IsZero() {
		s.b.log.Error("service suspended", "service", s.name, "instance", l.number, "code", wire.Suspended, "err", failure, "until", suspended.Format(time.RFC3339))
	}
	if exit.Status != "" {
		told := Event{Kind: EventInstanceEnded, Service: s.name, Instance: l.number, Exit: exit.told()}
		if l.keeper != nil {
			told.PID = l.pid()
		}
		s.b.events.add(told)
	}
	s.remember()
	s.mu.Lock()
	close(l.over)
	if s.life == l { // else another process has registered while the record was written
		s.nextLocked(l)
	}
	s.mu.Unlock()
	s.b.retired(s)
}

// judgeLocked notes how a life has ended, and tells who waited for it if it failed. It returns until when the service is suspended by that.
func (s *service) judgeLocked(l *life, exit Exit, failure error) (suspended time.Time) {
	if exit.Status != "" {
		s.last = exit
	}
	if l.number == s.number { // the next broker has nothing to look for
		s.kept, s.keptBy, s.served = keeper.Record{}, servicefile.Service{}, false
	}
	now := time.Now()
	switch {
	case failure != nil:
		s.health.failed(now, l.def.ThrottleInterval, wire.AsError(failure).Text)
		if s.health.suspended(now) {
			suspended = s.health.Suspended
		}
	case now.Sub(l.begun) >= quick(l.def.ThrottleInterval):
		s.health.lasted()
		s.health.ended()
	default:
		s.health.ended()
	}
	if failure != nil && !l.served && !l.hasSettled() { // who waited for this start; those who have come since wait for the next
		s.failLocked(failure)
	}
	if failure == nil {
		failure = wire.Errorf(wire.Terminating, "%s has ended before it registered", s.name)
	}
	s.settleLocked(l, failure)
	return suspended
}

// nextLocked begins what comes after a life.
func (s *service) nextLocked(l *life) {
	s.life = nil
	defer s.changedLocked()
	if s.removed {
		s.failLocked(wire.Errorf(wire.UnknownEndpoint, "service %s was removed", s.name))
		return
	}
	var err error
	switch w := s.headLocked(); {
	case l.again != nil:
		err = s.beginLocked(*l.again)
	case w != nil:
		err = s.beginLocked(w.cause())
		s.impatientLocked()
	case s.keptAliveLocked() && !s.health.suspended(time.Now()):
		err = s.beginLocked(keptAlive())
	}
	if err != nil {
		s.failLocked(err)
	}
	if s.life == nil && s.timer == nil && s.keptAliveLocked() {
		s.laterLocked(keptAlive(), s.health.Suspended)
	}
}

// keptAlive is the end of the instance before as what a start is for.
func keptAlive() Cause { return Cause{Kind: CauseKeepAlive, At: wire.At(time.Now())} }

// settleLocked tells who waits for a life to come to something, once.
func (s *service) settleLocked(l *life, err error) {
	if !l.hasSettled() {
		l.err = err
		close(l.settled)
	}
}

// unknown is the status of an exit that nobody tells.
const unknown = "unknown"

// tell has a life look at its registration.
func (l *life) tell() {
	select {
	case l.news <- struct{}{}:
	default:
	}
}
