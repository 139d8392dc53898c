package count_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/internal/count"
	"github.com/fairlead-dev/fairlead/internal/explain"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestOutcomesAreCountedByTheirCodes(t *testing.T) {
	e := count.NewOutcomes()
	want := map[string]int64{count.OK: 2}
	for n, c := range explain.Codes() {
		for range n + 1 {
			e.AddOutcome(fmt.Errorf("open: %w", wire.Errorf(c.Code, "text")))
			want[string(c.Code)]++
		}
	}
	e.AddOutcome(nil)
	e.AddOutcome(nil)
	e.AddOutcome(errors.New("of no code"))
	want[string(wire.Internal)]++
	e.AddOutcome(wire.Errorf("made_up", "text"))
	want[count.Other]++
	if got := e.Load(); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
	if got := count.NewEach("a", "b").Load(); !maps.Equal(got, map[string]int64{"a": 0}) {
		t.Errorf("of nothing there is %v", got)
	}
}

func TestAFamilyHasABound(t *testing.T) {
	f := count.NewFamily(2, count.NewOutcomes)
	f.Add("a", count.Other)
	a := f.Of("a")
	f.Add("a", "b", "c")
	for _, name := range []string{"a", "b", "c", "d", count.Other} {
		f.Of(name).AddOutcome(nil)
	}
	got := map[string]int64{}
	for name, e := range f.All() {
		got[name] = e.Load()[count.OK]
	}
	if want := map[string]int64{"a": 1, "b": 1, count.Other: 3}; !maps.Equal(got, want) || f.Of("a") != a {
		t.Errorf("counted %v, want %v, and the counters of a stay", got, want)
	}
	if f.Name("b") != "b" || f.Name("c") != count.Other {
		t.Errorf("b counts as %s, c as %s", f.Name("b"), f.Name("c"))
	}
}

func TestTimesAreCountedByTheFirstBoundTheyAreNotOver(t *testing.T) {
	var d count.Durations
	bounds := d.Load().Bounds
	last := bounds[len(bounds)-1]
	for _, took := range []time.Duration{0, bounds[0], bounds[0] + 1, bounds[1], last, last + 1, last * 10} {
		d.Add(took)
	}
	got := d.Load()
	want := make([]int64, len(bounds)+1)
	want[0], want[1], want[len(want)-2], want[len(want)-1] = 2, 2, 1, 2
	if sum := bounds[0]*2 + 1 + bounds[1] + last*12 + 1; !slices.Equal(got.Counts, want) || got.Sum != sum {
		t.Errorf("counted %v, %v in all, want %v, %v", got.Counts, got.Sum, want, sum)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	for _, bad := range []count.Times{
		{}, {Counts: []int64{-1}}, {Counts: []int64{0}, Sum: -1}, {Bounds: []time.Duration{2, 2}, Counts: []int64{0, 0, 0}},
		{Bounds: make([]time.Duration, 65), Counts: make([]int64, 66)},
	} {
		if err := bad.Validate(); !errors.Is(err, wire.Malformed) {
			t.Errorf("%v: %v, want %s", bad, err, wire.Malformed)
		}
	}
}

func TestManyCountAtOnceAndNoneIsLost(t *testing.T) {
	f := count.NewFamily(8, count.NewOutcomes)
	var d count.Durations
	var work sync.WaitGroup
	const each = 1000
	for n := range 8 {
		work.Go(func() {
			for range each {
				f.Add(fmt.Sprint(n))
				f.Of(fmt.Sprint(n)).AddOutcome(nil)
				d.Add(time.Millisecond)
				d.Load()
			}
		})
	}
	work.Wait()
	for n := range 8 {
		if got := f.Of(fmt.Sprint(n)).Load()[count.OK]; got != each {
			t.Errorf("%d of %d are counted", got, each)
		}
	}
	if got := d.Load(); got.Sum != 8*each*time.Millisecond || slices.Max(got.Counts) != 8*each {
		t.Errorf("counted %v", got)
	}
}

func TestCountingAllocatesNothing(t *testing.T) {
	f := count.NewFamily(2, count.NewOutcomes)
	f.Add("a")
	var d count.Durations
	var refused error = wire.Errorf(wire.OverQuota, "text")
	if n := testing.AllocsPerRun(100, func() {
		f.Of("a").AddOutcome(nil)
		f.Of("b").AddOutcome(refused)
		d.Add(time.Second)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
