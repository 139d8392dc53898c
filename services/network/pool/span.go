package pool

import (
	"cmp"
	"math"
	"slices"
)

// A span is the offsets from first to last, both of them included.
type span struct{ first, last uint64 }

// spans are in ascending order, and none touches another.
type spans []span

// spansOf returns what any spans are together.
func spansOf(list []span) spans {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	var merged spans
	for _, s := range list {
		if n := len(merged) - 1; n >= 0 && (s.first <= merged[n].last || s.first-1 == merged[n].last) {
			merged[n].last = max(merged[n].last, s.last)
		} else {
			merged = append(merged, s)
		}
	}
	return merged
}

// without returns what of s is not in holes.
func (s spans) without(holes spans) spans {
	var left spans
	for _, one := range s {
		i, _ := holes.find(one.first)
		for ; i < len(holes) && holes[i].first <= one.last; i++ {
			if holes[i].first > one.first {
				left = append(left, span{one.first, holes[i].first - 1})
			}
			if holes[i].last >= one.last {
				one.first, one.last = 1, 0
				break
			}
			one.first = holes[i].last + 1
		}
		if one.first <= one.last {
			left = append(left, one)
		}
	}
	return left
}

// find returns the first span that does not end before offset, and whether offset is in it.
func (s spans) find(offset uint64) (i int, in bool) {
	i, _ = slices.BinarySearchFunc(s, offset, func(one span, offset uint64) int { return cmp.Compare(one.last, offset) })
	return i, i < len(s) && s[i].first <= offset
}

func (s spans) has(offset uint64) bool {
	_, in := s.find(offset)
	return in
}

// size returns how many offsets there are. They never are all that there are.
func (s spans) size() uint64 {
	var n uint64
	for _, one := range s {
		n += one.last - one.first + 1
	}
	return n
}

// sum adds, up to what an uint64 holds.
func sum(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// minus subtracts, down to 0.
func minus(a, b uint64) uint64 { return a - min(a, b) }
