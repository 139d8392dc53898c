package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Figures are what was measured of one thing: medians of the rounds, but Max and Count, which are of all of them. Times are in nanoseconds.
type Figures struct {
	P50   time.Duration `json:"p50"`
	P90   time.Duration `json:"p90"`
	P99   time.Duration `json:"p99"`
	Max   time.Duration `json:"max"`
	Rate  float64       `json:"rate"`  // a second: operations, or bytes of a stream
	Count int           `json:"count"` // of operations that were timed
}

// A Ratio says how two Figures stand to each other: the medians of what each round says.
type Ratio struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
	Rate float64 `json:"rate"`
}

// A sample is what one round has seen of one thing.
type sample struct {
	took    []time.Duration // of each operation
	elapsed time.Duration
	amount  float64 // what was done in that time
}

// at returns what this part of the operations, from 0 to 1, took at most.
func (s sample) at(part float64) time.Duration {
	if len(s.took) == 0 {
		return 0
	}
	return s.took[max(0, int(math.Ceil(part*float64(len(s.took))))-1)]
}

func (s sample) rate() float64 { return s.amount / s.elapsed.Seconds() }

// counted makes a sample of operations, each of which counts.
func counted(took []time.Duration, elapsed time.Duration) sample {
	slices.Sort(took)
	return sample{took, elapsed, float64(len(took))}
}

// measured has a sample of each round, by the name of what was measured.
type measured struct {
	names []string // in the order in which they were first measured
	of    map[string][]sample
}

func (m *measured) add(name string, s sample) {
	if m.of == nil {
		m.of = map[string][]sample{}
	}
	if m.of[name] == nil {
		m.names = append(m.names, name)
	}
	m.of[name] = append(m.of[name], s)
}

// rows returns what was measured, and its ratio to what of says.
func (m *measured) rows(of map[string]string) []Row {
	list := make([]Row, len(m.names))
	for i, name := range m.names {
		list[i] = Row{Name: name, Figures: figures(m.of[name]), Of: of[name]}
		if of[name] != "" {
			r := m.ratio(name, of[name])
			list[i].Ratio = &r
		}
	}
	return list
}

func (m *measured) ratio(name, of string) Ratio {
	a, b := m.of[name], m.of[of]
	quotient := func(of func(sample) float64) float64 {
		return math.Round(1000*median(len(a), func(i int) float64 { return of(a[i]) / of(b[i]) })) / 1000
	}
	at := func(part float64) float64 { return quotient(func(s sample) float64 { return float64(s.at(part)) }) }
	return Ratio{at(0.5), at(0.9), at(0.99), at(1), quotient(sample.rate)}
}

func figures(list []sample) (f Figures) {
	at := func(part float64) time.Duration {
		return time.Duration(median(len(list), func(i int) float64 { return float64(list[i].at(part)) }))
	}
	for _, s := range list {
		f.Max = max(f.Max, s.at(1))
		f.Count += len(s.took)
	}
	f.P50, f.P90, f.P99 = at(0.5), at(0.9), at(0.99)
	f.Rate = math.Round(median(len(list), func(i int) float64 { return list[i].rate() }))
	return f
}

// median returns the middle one of n values.
func median(n int, value func(int) float64) float64 {
	all := make([]float64, n)
	for i := range all {
		all[i] = value(i)
	}
	slices.Sort(all)
	return all[n/2]
}

// A side is one of what takes turns.
type side struct {
	names []string // of the samples that it returns
	run   func(context.Context, *turn) ([]sample, error)
}

// A turn is how long a side may go on. Any goroutine may ask.
type turn struct {
	began time.Time
	time  time.Duration
	left  atomic.Int64 // operations, where time is 0
	over  atomic.Bool
}

// next reports whether there is to be another operation.
func (t *turn) next() bool {
	switch {
	case t.over.Load():
		return false
	case t.time == 0:
		return t.left.Add(-1) >= 0
	}
	return time.Since(t.began) < t.time
}

// turn returns a turn that is one of so many of equal length.
func (o Options) turn(of int) *turn {
	t := &turn{began: time.Now()}
	if o.Count > 0 {
		t.left.Store(int64((o.Count + of - 1) / of))
	} else {
		t.time = max(time.Microsecond, o.Time/time.Duration(of))
	}
	return t
}

// compare has the sides take turns. What a first, short turn of each says does not count: it is for caches and pools to fill.
func (s *stage) compare(sides ...side) (m measured, err error) {
	for round := range rounds + 1 {
		for _, side := range sides {
			t := s.turn(10 * rounds)
			if round > 0 {
				s.progress("round %d of %d: %s", round, rounds, side.names[0])
				t = s.turn(rounds)
			}
			list, err := side.run(s.ctx, t)
			if err != nil {
				return m, fmt.Errorf("%s: %w", side.names[0], err)
			}
			for i := range list {
				if round > 0 {
					m.add(side.names[i], list[i])
				}
			}
		}
	}
	return m, nil
}

// repeat has so many callers do something, each after a pause, until the turn is over. The first failure ends it.
func repeat(ctx context.Context, t *turn, callers int, pause time.Duration, do func(caller int) error) (sample, error) {
	var all sync.WaitGroup
	took, errs := make([][]time.Duration, callers), make([]error, callers)
	for i := range callers {
		all.Go(func() {
			for first := true; ctx.Err() == nil && (t.next() || first && t.time > 0); first = false {
				time.Sleep(pause)
				began := time.Now()
				if errs[i] = do(i); errs[i] != nil {
					t.over.Store(true)
					return
				}
				took[i] = append(took[i], time.Since(began))
			}
		})
	}
	all.Wait()
	elapsed := time.Since(t.began)
	for _, err := range append(errs, context.Cause(ctx)) {
		if err != nil {
			return sample{}, err
		}
	}
	return counted(slices.Concat(took...), elapsed), nil
}
