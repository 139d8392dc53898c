package broker

import (
	"log/slog"
	"sync"
	"time"
)

// deniedLines is how many refusals are told a second.
const deniedLines = 10

// A denials logs what is refused to peers. They can cause any number of lines, so what is over deniedLines in a second is only counted.
type denials struct {
	log  *slog.Logger
	rate limiter
}

// warn logs a refusal, or counts it. It is called when the peer has its answer, since a log may be slow; only a command's is before.
func (d *denials) warn(what string, args ...any) {
	tell, untold := d.rate.admit(time.Now())
	if tell && untold > 0 {
		args = append(args, "more", untold)
	}
	if tell {
		d.log.Warn(what, args...)
	}
}

// A limiter says which refusals are told: deniedLines a second.
type limiter struct {
	mu     sync.Mutex
	second int64 // the current one
	lines  int   // in it
	untold int64
}

// admit reports whether a refusal is told, and how many before it were not.
func (l *limiter) admit(at time.Time) (tell bool, untold int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := at.Unix(); l.second != now {
		l.second, l.lines = now, 0
	}
	l.lines++
	if l.lines > deniedLines {
		l.untold++
		return false, 0
	}
	untold, l.untold = l.untold, 0
	return true, untold
}
