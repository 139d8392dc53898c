// Package pace bounds what others can cause: lines of a log, and work.
package pace

import (
	"sync"
	"time"
)

// Lines is how many lines a second are told.
const Lines = 10

// A Limiter says which lines are told: Lines a second. The zero value is ready. Its methods may be called by several at once.
type Limiter struct {
	mu     sync.Mutex
	second int64 // the current one
	lines  int   // in it
	untold int64
}

// Admit reports whether a line is told, and how many before it were not.
func (l *Limiter) Admit(at time.Time) (tell bool, untold int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := at.Unix(); l.second != now {
		l.second, l.lines = now, 0
	}
	l.lines++
	if l.lines > Lines {
		l.untold++
		return false, 0
	}
	untold, l.untold = l.untold, 0
	return true, untold
}
