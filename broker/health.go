package broker

import (
	"time"
)

const (
	// quickDeaths is how many failures in a row, each soon after a start, make a service suspended.
	quickDeaths = 5
	// leastLife is what a start must live at least, whatever its throttle interval, so that its end is no quick death.
	leastLife = time.Second
	// longestPause bounds the pause between a failed start and the next.
	longestPause = 5 * time.Minute
	// The first suspension lasts suspendFirst, each further one twice as long, up to suspendMost.
	suspendFirst = 5 * time.Minute
	suspendMost  = time.Hour
)

// A health says how a service's starts have gone, and so when the next may be. It is written to the service's record. Its methods are given the time and
// have no clock.
type health struct {
	Starts      int64     `json:"starts"`                 // since the record began, also those that failed
	LastStart   time.Time `json:"last_start,omitzero"`    // when the last attempt began
	Failed      bool      `json:"failed,omitempty"`       // how the last one ended
	Quick       int       `json:"quick,omitempty"`        // quick deaths in a row
	Vain        bool      `json:"vain,omitempty"`         // the last one has ended with status 0 within leastLife, and has told of no session
	Suspensions int       `json:"suspensions,omitempty"`  // in a row
	Suspended   time.Time `json:"suspended,omitzero"`     // until then
	Failure     string    `json:"last_failure,omitempty"` // for people
}

// began notes an attempt.
func (h *health) began(now time.Time) {
	h.Starts++
	h.LastStart, h.Failed, h.Vain = now, false, false
}

// ended notes that what was started last has ended as it should, or has been stopped.
func (h *health) ended() { h.Failed = false }

// recalled makes sense of what was read at a time: the clock may have been put back since it was written.
func (h *health) recalled(now time.Time) {
	if h.LastStart.After(now) {
		h.LastStart = now
	}
	if most := now.Add(suspendMost); h.Suspended.After(most) {
		h.Suspended = most
	}
	h.Quick, h.Suspensions = max(h.Quick, 0), max(h.Suspensions, 0)
}

// lasted notes that what was started last has lived long enough for its end to be no quick death.
func (h *health) lasted() { h.Quick, h.Suspensions = 0, 0 }

// quick is how soon after its start an end is a quick death.
func quick(throttle time.Duration) time.Duration { return max(throttle, leastLife) }

// failed notes that what was started last has failed, and why.
func (h *health) failed(now time.Time, throttle time.Duration, why string) {
	h.Failed, h.Failure = true, why
	if now.Sub(h.LastStart) >= quick(throttle) {
		h.lasted()
		return
	}
	h.Quick++
	if h.Quick >= quickDeaths {
		h.Suspended = now.Add(min(suspendFirst<<min(h.Suspensions, 16), suspendMost))
		h.Suspensions++
		h.Quick = quickDeaths - 1 // one more suspends it again
	}
}

// suspended reports whether the service is not started at all now.
func (h *health) suspended(now time.Time) bool { return now.Before(h.Suspended) }

// reset forgets all failures.
func (h *health) reset() { *h = health{Starts: h.Starts, LastStart: h.LastStart} }

// next is when an open may start the service again. After a failure the pause counts from the last start, and doubles with each quick death. After an end in vain it is as long
// as a start must live at least: who opens it again and again has it started that often at most.
func (h *health) next(throttle time.Duration) time.Time {
	if !h.Failed && h.Vain {
		return h.LastStart.Add(min(throttle, leastLife))
	}
	if !h.Failed {
		return time.Time{}
	}
	return later(h.Suspended, h.LastStart.Add(pause(throttle, h.Quick)))
}

// again is when a service that is kept alive is started again: as next, and never within the throttle interval of its last start.
func (h *health) again(throttle time.Duration) time.Time {
	return later(h.next(throttle), h.LastStart.Add(throttle))
}

// pause is the time from a start that was the nth quick death in a row to the next start.
func pause(throttle time.Duration, n int) time.Duration {
	return min(throttle<<min(max(n-1, 0), 16), max(longestPause, throttle))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
