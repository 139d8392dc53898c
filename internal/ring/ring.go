// Package ring keeps what has happened last, for any number of readers.
package ring

// A Ring keeps the values that were added last, numbered from 1 on; older ones are forgotten first. A reader has no buffer of its own but the number that it has come to:
// one that is slow holds up nobody, and misses what is forgotten meanwhile. A mutex of its user's guards a Ring. What values point to must not change.
type Ring[T any] struct {
	most    int64
	kept    []T           // value n is at (n-1) % most
	last    int64         // number of the last value
	waiting chan struct{} // closed with the next value; nil: nobody waits
}

// New returns a Ring that keeps the last values, at most so many. It grows to that with what is added.
func New[T any](most int) *Ring[T] { return &Ring[T]{most: int64(most)} }

// Add keeps a value under the next number, Last()+1.
func (r *Ring[T]) Add(value T) {
	r.last++
	if int64(len(r.kept)) < r.most {
		r.kept = append(r.kept, value)
	} else {
		r.kept[(r.last-1)%r.most] = value
	}
	if r.waiting != nil {
		close(r.waiting)
		r.waiting = nil
	}
}

// Last returns the number of the last value; 0: there was none.
func (r *Ring[T]) Last() int64 { return r.last }

// First returns the number of the first value that is kept; Last()+1 where none is.
func (r *Ring[T]) First() int64 { return r.last - int64(len(r.kept)) + 1 }

// At returns the value of a number from First to Last.
func (r *Ring[T]) At(n int64) T { return r.kept[(n-1)%r.most] }

// Behind returns the number that follows the last of the kept values for which before holds, or First where it holds for none. Values need not be in order: clocks are put
// back.
func (r *Ring[T]) Behind(before func(T) bool) int64 {
	n := r.last
	for ; n >= r.First() && !before(r.At(n)); n-- {
	}
	return n + 1
}

// Take returns values from a number on, at most so many. Missed is how many of them are forgotten: the batch has what follows those. Where there is none yet, it returns a
// channel that is closed when there is.
func (r *Ring[T]) Take(from int64, most int) (batch []T, missed int64, some <-chan struct{}) {
	missed = max(0, r.First()-from)
	for n := from + missed; n <= r.last && len(batch) < most; n++ {
		batch = append(batch, r.At(n))
	}
	if len(batch) > 0 {
		return batch, missed, nil
	}
	if r.waiting == nil {
		r.waiting = make(chan struct{})
	}
	return nil, missed, r.waiting
}
