package ring_test

import (
	"slices"
	"testing"

	"github.com/fairlead-dev/fairlead/internal/ring"
)

// filled returns a ring of four that so many values were added to: each is its number.
func filled(values int) *ring.Ring[int] {
	r := ring.New[int](4)
	for n := range values {
		r.Add(n + 1)
	}
	return r
}

func TestTheLastValuesAreKeptAndAReaderIsToldWhatItMissed(t *testing.T) {
	for _, test := range []struct {
		added       int
		from        int64
		most        int
		batch       []int
		missed      int64
		first, last int64
		waits       bool
	}{
		{added: 0, from: 1, most: 9, first: 1, waits: true},
		{added: 3, from: 1, most: 9, batch: []int{1, 2, 3}, first: 1, last: 3},
		{added: 3, from: 2, most: 1, batch: []int{2}, first: 1, last: 3},
		{added: 3, from: 4, most: 9, first: 1, last: 3, waits: true},
		{added: 4, from: 1, most: 9, batch: []int{1, 2, 3, 4}, first: 1, last: 4},
		{added: 5, from: 1, most: 9, batch: []int{2, 3, 4, 5}, missed: 1, first: 2, last: 5},
		{added: 11, from: 3, most: 2, batch: []int{8, 9}, missed: 5, first: 8, last: 11},
		{added: 11, from: 10, most: 9, batch: []int{10, 11}, first: 8, last: 11},
	} {
		r := filled(test.added)
		batch, missed, some := r.Take(test.from, test.most)
		if !slices.Equal(batch, test.batch) || missed != test.missed || (some != nil) != test.waits || r.First() != test.first || r.Last() != test.last {
			t.Errorf("%+v: %v, %d missed, waits %t, kept are %d to %d", test, batch, missed, some != nil, r.First(), r.Last())
		}
	}
}

func TestWhoWaitsIsWokenByTheNextValue(t *testing.T) {
	r := filled(2)
	_, _, some := r.Take(3, 9)
	_, _, other := r.Take(3, 9)
	select {
	case <-some:
		t.Error("it is woken by nothing")
	default:
	}
	r.Add(3)
	<-some
	<-other
	if batch, _, _ := r.Take(3, 9); !slices.Equal(batch, []int{3}) {
		t.Errorf("it is woken for %v", batch)
	}
}

func TestAReaderMayBeginBehindTheLastOfWhatItDoesNotWant(t *testing.T) {
	for _, test := range []struct{ added, before, want int }{{0, 1, 1}, {3, 1, 1}, {3, 3, 3}, {3, 4, 4}, {6, 1, 3}, {6, 5, 5}} {
		if got := filled(test.added).Behind(func(n int) bool { return n < test.before }); got != int64(test.want) {
			t.Errorf("of %d, from %d on: begins at %d, want %d", test.added, test.before, got, test.want)
		}
	}
	r := ring.New[int](4)
	for _, at := range []int{5, 6, 1, 2} { // the clock was put back
		r.Add(at)
	}
	if got := r.Behind(func(at int) bool { return at < 2 }); got != 4 {
		t.Errorf("it begins at %d, want 4", got)
	}
}
