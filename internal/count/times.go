package count

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// bounds are those of all Durations.
var bounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute,
}

// A Durations counts how long something took. Its zero value is ready.
type Durations struct {
	n   [len(bounds) + 1]atomic.Int64 // by the first of the bounds that it is not over
	sum atomic.Int64                  // in nanoseconds
}

// Add counts one.
func (d *Durations) Add(took time.Duration) {
	at, _ := slices.BinarySearch(bounds[:], took)
	d.n[at].Add(1)
	d.sum.Add(int64(took))
}

// Load returns what was counted. While others count, Sum may be a moment newer or older than the rest.
func (d *Durations) Load() Times {
	t := Times{Bounds: bounds[:], Sum: time.Duration(d.sum.Load())}
	for at := range d.n {
		t.Counts = append(t.Counts, d.n[at].Load())
	}
	return t
}

// Times says how long something took, each time.
type Times struct {
	Bounds []time.Duration `msgpack:"b"` // ascending, in nanoseconds
	Counts []int64         `msgpack:"n"` // how many took at most as long as each bound, and longer than the one before; and behind them how many took longer than all
	Sum    time.Duration   `msgpack:"s"` // of all, in nanoseconds
}

// maxBounds is how many bounds Times may have.
const maxBounds = 64

// Validate checks Times that were received.
func (t *Times) Validate() error {
	if len(t.Bounds) > maxBounds || len(t.Counts) != len(t.Bounds)+1 || t.Sum < 0 {
		return wire.Errorf(wire.Malformed, "times: %d bounds and %d counts, sum %v", len(t.Bounds), len(t.Counts), t.Sum)
	}
	for i, n := range t.Counts {
		if n < 0 || i > 0 && i < len(t.Bounds) && t.Bounds[i] <= t.Bounds[i-1] {
			return wire.Errorf(wire.Malformed, "times: bound %d of %d is not over the one before, or is met %d times", i, len(t.Bounds), n)
		}
	}
	return nil
}
