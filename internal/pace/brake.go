package pace

import "time"

// A Brake bounds how often others can have a goroutine do something: Most times in each stretch of time. What is more waits for the next one, so that there is time for everybody else.
// Only one goroutine uses it.
type Brake struct {
	Most int
	Each time.Duration

	since time.Time // of this stretch
	done  int       // in it
}

// Wait is called for each time, and waits where it was the last one of its stretch. It returns early when over is closed.
func (b *Brake) Wait(over <-chan struct{}) {
	now := time.Now()
	if now.Sub(b.since) >= b.Each {
		b.since, b.done = now, 0
	}
	if b.done++; b.done < b.Most {
		return
	}
	select {
	case <-time.After(b.Each - now.Sub(b.since)):
	case <-over:
	}
}
