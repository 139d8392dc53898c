package broker

import (
	"context"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// idleAsk bounds how long an instance may take to say whether it is idle.
const idleAsk = 5 * time.Second

// idle asks an instance that has had no session for its time whether it may end. It returns when to look again, or that the instance ends.
func (l *life) idle() (again time.Duration, ends bool) {
	l.s.mu.Lock()
	i := l.instance
	busy := i == nil || i.over() || l.stopping || len(l.s.queue) > 0 || l.s.passing > 0
	l.s.mu.Unlock()
	if busy {
		return l.def.IdleExit, false
	}
	live, since := l.s.b.table.idle(i)
	if live > 0 {
		return l.def.IdleExit, false
	}
	if rest := l.def.IdleExit - time.Since(later(since, l.begun)); rest > 0 {
		return rest, false
	}
	l.s.mu.Lock()
	if l.stopping || len(l.s.queue) > 0 || l.s.passing > 0 {
		l.s.mu.Unlock()
		return l.def.IdleExit, false
	}
	l.retiring = true // an open that comes waits for the answer
	l.s.mu.Unlock()
	ctx, cancel := context.WithTimeout(l.s.b.ctx, idleAsk)
	defer cancel()
	var answer wire.Idle
	err := i.control.Call(ctx, wire.MethodIdle, nil, &answer)
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.retiring = false
	if err == nil && answer.Ended {
		l.askLocked()
		return 0, true
	}
	l.s.advanceLocked()
	return l.def.IdleExit, false
}
