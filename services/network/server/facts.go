package server

import (
	"context"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// factName is the fact that says what a session holds, for whoever inspects it.
	factName = "lease"
	// factsWait is how long a session waits to be told what it holds: that often changes with each request, and each time would cost a message to the client.
	factsWait = 10 * time.Millisecond
)

// changedLocked has a session told soon what it holds.
func (s *Server) changedLocked(h *holder) {
	s.untold[h] = struct{}{}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// tellFacts tells sessions what they hold, until ctx ends.
func (s *Server) tellFacts(ctx context.Context) {
	for {
		select {
		case <-s.changed:
		case <-ctx.Done():
			return
		}
		pause(ctx, factsWait)
		for h, text := range s.takeFacts() {
			_ = h.session.SetFact(factName, text) // one more fact than fits, of somebody else, is no reason to fail
		}
	}
}

// takeFacts returns what is to be told.
func (s *Server) takeFacts() map[*holder]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	facts := make(map[*holder]string, len(s.untold))
	for h := range s.untold {
		facts[h] = h.factLocked()
	}
	clear(s.untold)
	return facts
}

// factLocked says what a session holds: all that fits into one fact.
func (h *holder) factLocked() (text string) {
	for _, l := range h.leases {
		if l.state != held {
			continue
		}
		one := strings.TrimRight(l.segment.Name+" "+l.addresses[0].Addr().String()+" "+l.hostname, " ")
		if text != "" {
			one = text + "; " + one
		}
		if len(one) > wire.MaxFact {
			break
		}
		text = one
	}
	return text
}
