// Package count counts what happens and how long it takes. Who counts takes no lock and allocates nothing, so it may be done anywhere.
package count

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// OK is the outcome without an error.
	OK = "ok"
	// Other stands for all that has no name of its own.
	Other = "other"
)

// An Each counts each of a fixed set of things.
type Each struct {
	names []string
	n     []atomic.Int64 // of each name, and behind them of what is none of these
}

// NewEach returns counters of what has these names.
func NewEach(names ...string) *Each {
	return &Each{names, make([]atomic.Int64, len(names)+1)}
}

// NewOutcomes returns counters of OK and of all codes.
func NewOutcomes() *Each { return NewCodes(OK) }

// NewCodes returns counters of all codes, of which the first is the usual one.
func NewCodes(first wire.Code) *Each { return NewEach(append([]string{string(first)}, codes...)...) }

var codes = []string{
	string(wire.UnknownEndpoint), string(wire.NotPermitted), string(wire.StartFailed), string(wire.StartTimeout), string(wire.Suspended), string(wire.OverQuota),
	string(wire.Refused), string(wire.Hung), string(wire.Terminating), string(wire.Interrupted), string(wire.Invalid), string(wire.UnknownMethod), string(wire.Malformed),
	string(wire.DeadlineExceeded), string(wire.Canceled), string(wire.NotFound), string(wire.Conflict), string(wire.Exhausted), string(wire.Unavailable),
	string(wire.Unsupported), string(wire.Internal),
}

// Add counts one. What is none of the names counts as Other.
func (e *Each) Add(name string) { e.of(name).Add(1) }

// Of returns how often a name was counted.
func (e *Each) Of(name string) int64 { return e.of(name).Load() }

func (e *Each) of(name string) *atomic.Int64 {
	at := slices.Index(e.names, name)
	if at < 0 {
		at = len(e.names)
	}
	return &e.n[at]
}

// AddOutcome is Add of err's code, or of OK for nil.
func (e *Each) AddOutcome(err error) {
	if err == nil {
		e.Add(OK)
		return
	}
	e.Add(string(wire.CodeOf(err)))
}

// Load returns how often each was counted: the first of the names in any case, others only if they were.
func (e *Each) Load() map[string]int64 {
	all := map[string]int64{e.names[0]: e.n[0].Load()}
	for at, name := range append(slices.Clone(e.names), Other) {
		if n := e.n[at].Load(); n > 0 {
			all[name] = n
		}
	}
	return all
}

// A Family is counters of each of several names that are not known beforehand. There is a bound to these: what has no place counts as Other, as does what was not
// added.
type Family[T any] struct {
	make  func() *T
	most  int
	other *T
	all   atomic.Pointer[map[string]*T]

	adding sync.Mutex // held by who replaces all
}

// NewFamily returns a Family of at most so many names beside Other, whose counters make makes.
func NewFamily[T any](most int, make func() *T) *Family[T] {
	f := &Family[T]{make: make, most: most, other: make()}
	f.all.Store(&map[string]*T{})
	return f
}

// Add gives names counters of their own, where they have none, and while there is room.
func (f *Family[T]) Add(names ...string) {
	f.adding.Lock()
	defer f.adding.Unlock()
	if !slices.ContainsFunc(names, func(name string) bool { return (*f.all.Load())[name] == nil }) {
		return
	}
	next := maps.Clone(*f.all.Load())
	for _, name := range names {
		if next[name] == nil && name != Other && len(next) < f.most {
			next[name] = f.make()
		}
	}
	f.all.Store(&next)
}

// Of returns the counters of a name, or those of Other.
func (f *Family[T]) Of(name string) *T {
	if t := (*f.all.Load())[name]; t != nil {
		return t
	}
	return f.other
}

// Name returns the name by which something is counted: its own, or Other.
func (f *Family[T]) Name(name string) string {
	if (*f.all.Load())[name] == nil {
		return Other
	}
	return name
}

// All returns the counters of all names and of Other. The map is the caller's.
func (f *Family[T]) All() map[string]*T {
	all := maps.Clone(*f.all.Load())
	all[Other] = f.other
	return all
}
