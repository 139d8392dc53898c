package broker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// maxQueue is how many opens of an endpoint by one user wait for an instance. A further one is refused, and may be asked again after queueRetry. So nobody can fill the
	// queue for others: how many all of these are together is quota.Waiting's to bound.
	maxQueue   = 128
	queueRetry = 50 * time.Millisecond
	// poisonous is how many crashes in a row with a client's open at the head have it refused.
	poisonous = 3
	// carefulWait bounds how long an open that may crash an instance holds up those behind it: as long as a service may take to accept a session.
	carefulWait = 10 * time.Second
)

// A handedOver is called when an open has been handed over, with a channel that is closed when the instance has taken it up, or when it could not be; nil: it was refused before it was
// on its way.
type handedOver func(taken <-chan struct{})

// A waiter is an open that waits for an instance, in its service's queue.
type waiter struct {
	client   party
	endpoint string
	deadline time.Time
	turn     chan struct{} // closed when it has an instance, or an error
	called   bool          // turn is closed
	instance *instance
	err      error
}

// cause is the open as what a start is for.
func (w *waiter) cause() Cause {
	return Cause{Kind: CauseOpen, At: wire.At(time.Now()), Endpoint: w.endpoint, Client: &w.client.Process}
}

// A suspect is the client whose open was at the head when instances crashed.
type suspect struct {
	client  wire.Process
	crashes int // in a row
}

// get returns the instance that an open is to go to, when it is its turn. If there is none it has one started. The open is handed over, or not, before
// done is called. With first it is the turn of this open before that of those that wait. It fails when ctx ends, or as the start does.
func (s *service) get(ctx context.Context, client party, endpoint string, first bool) (i *instance, done handedOver, err error) {
	s.mu.Lock()
	if s.life != nil && time.Since(s.life.begun) >= quick(s.def.ThrottleInterval) {
		s.suspect = suspect{}
	}
	if s.suspect.crashes >= poisonous && s.suspect.client == client.Process {
		s.mu.Unlock()
		return nil, nil, wire.Errorf(wire.Refused, "%s crashed %d times in a row with this client's open before all others: it is not let through again until it has run "+
			"for a while, or 'brokerctl service reset %s'", s.name, s.suspect.crashes, s.name)
	}
	if s.takesLocked() && !slices.Contains(s.life.instance.endpoints, endpoint) {
		defer s.mu.Unlock()
		return nil, nil, wire.Errorf(wire.Unavailable, "%s is served by the next instance of %s: its service file has changed since this one was started; "+
			"'brokerctl service restart %s' starts the next", endpoint, s.name, s.name)
	}
	if s.freeLocked() {
		defer s.mu.Unlock()
		s.passing++
		return s.life.instance, s.passed, nil
	}
	w, err := s.joinLocked(ctx, client, endpoint, first)
	s.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	select {
	case <-w.turn:
	case <-ctx.Done():
		s.mu.Lock()
		if !w.called {
			s.leaveLocked(w)
			s.mu.Unlock()
			return nil, nil, fmt.Errorf("wait for %s to start: %w", s.name, ctx.Err())
		}
		s.mu.Unlock()
	}
	if w.err != nil {
		return nil, nil, w.err
	}
	return w.instance, func(taken <-chan struct{}) { s.left(w, taken) }, nil
}

// getNow is get for an open for which there is an instance, and nobody to wait for; nil: it is to wait its turn, or is refused.
func (s *service) getNow(endpoint string) *instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.freeLocked() || !slices.Contains(s.life.instance.endpoints, endpoint) {
		return nil
	}
	s.passing++
	return s.life.instance
}

// freeLocked reports whether an open need not wait for an instance, or for others that do.
func (s *service) freeLocked() bool {
	return len(s.queue) == 0 && s.takesLocked() && s.suspect.crashes == 0
}

// joinLocked puts an open at the end of the queue, or before those whose turn has not come, and begins a life if there is none.
func (s *service) joinLocked(ctx context.Context, client party, endpoint string, first bool) (*waiter, error) {
	waiting := 0
	for _, w := range s.queue {
		if w.endpoint == endpoint && w.client.UID == client.UID {
			waiting++
		}
	}
	if waiting >= maxQueue && !first {
		e := wire.Errorf(wire.OverQuota, "%d opens of %s by uid %d wait for an instance already", maxQueue, endpoint, client.UID)
		e.Retry = queueRetry
		return nil, e
	}
	deadline, _ := ctx.Deadline()
	w := &waiter{client: client, endpoint: endpoint, deadline: deadline, turn: make(chan struct{})}
	at := len(s.queue)
	if next := slices.IndexFunc(s.queue, func(w *waiter) bool { return !w.called }); first && next >= 0 {
		at = next
	}
	s.queue = slices.Insert(s.queue, at, w)
	err := s.beginLocked(w.cause())
	if err != nil {
		s.leaveLocked(w)
		return nil, err
	}
	s.impatientLocked()
	s.advanceLocked()
	return w, nil
}

// impatientLocked refuses those at once whose time will be over before the service is started again.
func (s *service) impatientLocked() {
	if s.life != nil || s.timer == nil {
		return
	}
	for _, w := range slices.Clone(s.queue) {
		if w.deadline.Before(s.due) {
			what := "failed. The last failure: " + s.health.Failure
			if !s.health.Failed {
				what = "ended as soon as it had registered"
			}
			e := wire.Errorf(wire.StartFailed, "%s is not started again before %s, as it has %s", s.name, s.due.Format(time.RFC3339), what)
			e.Retry = time.Until(s.due)
			s.callLocked(w, nil, e)
			s.leaveLocked(w)
		}
	}
}

// takesLocked reports whether the service has an instance that takes sessions.
func (s *service) takesLocked() bool {
	return s.life != nil && s.life.instance != nil && !s.life.stopping && !s.life.retiring && !s.life.instance.over()
}

// headLocked returns the first open that waits for an instance; nil: none does. One that has had its turn may be before it.
func (s *service) headLocked() *waiter {
	for _, w := range s.queue {
		if !w.called {
			return w
		}
	}
	return nil
}

// advanceLocked has the open at the head of the queue go on, if there is an instance for it. The next one follows when that has been handed over.
func (s *service) advanceLocked() {
	if len(s.queue) > 0 && !s.queue[0].called && s.takesLocked() {
		s.callLocked(s.queue[0], s.life.instance, nil)
	}
}

func (s *service) callLocked(w *waiter, i *instance, err error) {
	if !w.called {
		w.called, w.instance, w.err = true, i, err
		close(w.turn)
	}
}

// failLocked refuses all opens that wait.
func (s *service) failLocked(err error) {
	for _, w := range s.queue {
		if !w.called {
			s.callLocked(w, nil, err)
		}
	}
	s.queue = slices.DeleteFunc(s.queue, func(w *waiter) bool { return w.err != nil })
}

func (s *service) leaveLocked(w *waiter) {
	s.queue = slices.DeleteFunc(s.queue, func(other *waiter) bool { return other == w })
	s.advanceLocked()
}

// left notes that an open has been handed over, or could not be. While a client is suspect, the next open goes on only when the instance has taken this one up: so it
// is known which of them it crashes with.
func (s *service) left(w *waiter, taken <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspect.crashes > 0 && taken != nil {
		s.mu.Unlock()
		select {
		case <-taken:
		case <-time.After(carefulWait):
		case <-s.b.ctx.Done():
		}
		s.mu.Lock()
	}
	s.leaveLocked(w)
}

// passed is left for an open that had not to wait.
func (s *service) passed(<-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passing--
}

// crashed notes which client's open was at the head when an instance crashed: the first that was being opened on it; nil: there was none.
func (s *service) crashed(opening *wire.Process) {
	s.mu.Lock()
	switch {
	case opening == nil:
		s.suspect = suspect{}
	case s.suspect.client == *opening:
		s.suspect.crashes++
	default:
		s.suspect = suspect{client: *opening, crashes: 1}
	}
	now := s.suspect
	s.mu.Unlock()
	if now.crashes == poisonous {
		s.b.log.Warn("client is refused: the service crashes whenever it is let through first", "service", s.name, "peer", now.client.PID, "uid", now.client.UID)
	}
}
