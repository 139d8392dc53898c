package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// An instance is hung when it does not answer a question on its control connection. It is asked
//
//   - when hand-overs are on their way to it, and it has taken none up for takeWait: whoever is stopped, or reads nothing, is found by who needs it;
//   - every hang_timeout, if its service file gives one: then that is also the time it has for its answer.
//
// The question is a flush: it is answered behind the hand-overs that have come before, by any library, and by no handler of the author's. A program that the broker has started is
// killed, and the next one is started as after a crash. Of any other process the registration ends, so that another may take its place. Nobody but those who open this service waits meanwhile.
const (
	takeWait   = 10 * time.Second // for a hand-over to be taken up: as long as a service may take to accept a session
	answerHung = 15 * time.Second // for the answer: a hand-over before the question may have to wait for others, for takeWait
)

// attend returns when the control connection of an instance has ended, and asks meanwhile whether it is there.
func (b *Broker) attend(i *instance, every time.Duration) {
	var due <-chan time.Time
	if every > 0 {
		ticks := time.NewTicker(every)
		defer ticks.Stop()
		due = ticks.C
	}
	for {
		patience := every
		select {
		case <-i.control.Done():
			return
		case <-i.late:
			patience = b.answers
		case <-due:
		}
		ctx, cancel := context.WithTimeout(b.ctx, patience)
		err := i.control.Flush(ctx)
		cancel()
		if err != nil && errors.Is(err, context.DeadlineExceeded) {
			b.replace(i, patience)
			<-i.control.Done()
			return
		}
	}
}

// replace ends an instance that is hung, as far as it is the broker's to end.
func (b *Broker) replace(i *instance, patience time.Duration) {
	err := wire.Errorf(wire.Hung, "%v is alive and has not answered within %v whether it is there: it is stopped, or its control connection is not read", i, patience)
	i.hung.Store(err)
	b.log.Warn("instance is hung", "service", i.service, "instance", i.number, "peer", i.process.PID, "uid", i.process.UID, "code", wire.Hung, "err", err)
	b.unregister(i)
	if s := b.service(i.service); s != nil && s.hung(i, err) {
		return
	}
	i.control.Abort(wire.End{Code: wire.Hung, Origin: wire.Local, Text: err.Text})
}

// hung tells the life of an instance that it is hung, and reports whether that life can be ended.
func (s *service) hung(i *instance, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.life
	if l == nil || l.latest != i || l.keeper == nil {
		return false
	}
	select {
	case l.hung <- err:
	default: // it is told already
	}
	return true
}

// killHung kills the program of a life that is hung. Who opens the service from now on waits for the next one.
func (l *life) killHung(err error) {
	l.s.mu.Lock()
	l.stopping = true
	l.s.changedLocked()
	l.s.mu.Unlock()
	l.keeper.Kill()
	l.gone(err)
}

// end is how the sessions of an instance end whose process is gone, or said to be by text.
func (i *instance) end(text string) wire.End {
	if err := i.hung.Load(); err != nil {
		return wire.End{Code: wire.Hung, Origin: wire.Broker, Text: fmt.Sprintf("%s; %s", err.Text, text)}
	}
	return wire.End{Code: wire.Interrupted, Origin: wire.Local, Text: text}
}

// handedLocked notes that a hand-over is on its way to an instance, and has somebody look after it. Progress is what the instance tells of them, and nothing else: clients who come, find that
// it takes no more, and go, must not hide that it is hung.
func (t *table) handedLocked(i *instance, at time.Time) {
	if i.opening == 0 {
		i.progress = at
	}
	i.opening++
	if i.late != nil && !i.looked { // one timer in takeWait, however many there are
		i.looked = true
		time.AfterFunc(t.takeWait, func() { t.look(i) })
	}
}

// look has an instance asked that has taken nothing up for too long. What it has not even then, it was never given.
func (t *table) look(i *instance) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked()
	if i.opening == 0 {
		i.looked = false
		return
	}
	rest := t.takeWait - time.Since(i.progress)
	if rest <= 0 {
		select {
		case i.late <- struct{}{}:
		default: // it is being asked
		}
		rest = t.takeWait
	}
	time.AfterFunc(rest, func() { t.look(i) })
}
