package broker

import (
	"log/slog"
	"sync"
	"time"
)

// deniedLines is how many refusals are logged a second.
const deniedLines = 10

// A denials logs what is refused to peers. They can cause any number of lines, so what is over deniedLines in a second is only counted.
type denials struct {
	log *slog.Logger

	mu     sync.Mutex
	second int64 // the current one
	lines  int   // in it
	untold int64
}

// warn logs a refusal, or counts it. It is called when the peer has its answer, since a log may be slow.
func (d *denials) warn(what string, args ...any) {
	now := time.Now().Unix()
	d.mu.Lock()
	if d.second != now {
		d.second, d.lines = now, 0
	}
	d.lines++
	tell := d.lines <= deniedLines
	untold := d.untold
	if tell {
		d.untold = 0
	} else {
		d.untold++
	}
	d.mu.Unlock()
	if tell && untold > 0 {
		args = append(args, "more", untold)
	}
	if tell {
		d.log.Warn(what, args...)
	}
}
