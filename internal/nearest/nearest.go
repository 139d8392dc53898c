// Package nearest finds what somebody who has mistyped a word may have meant.
package nearest

import (
	"cmp"
	"slices"
	"strings"
)

// most is how many words are offered.
const most = 3

// Of returns those of the words among that are near to word, the nearest first, at most three. Near is at most two letters wrong, left out, added or swapped
// with their neighbour, and one in a word of fewer than six.
func Of(word string, among []string) []string {
	type candidate struct {
		word     string
		distance int
	}
	bound := min(max(1, len(word)/3), 2)
	var near []candidate
	for _, w := range among {
		if d := distance(word, w, bound); d <= bound && d < len(w) {
			near = append(near, candidate{w, d})
		}
	}
	slices.SortFunc(near, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.word, b.word))
	})
	var words []string
	for _, c := range near[:min(most, len(near))] {
		words = append(words, c.word)
	}
	return slices.Compact(words)
}

// Question asks whether one of the words that are near was meant, as in ": is it list or last?", for the end of an error. It is empty where none is near.
func Question(word string, among []string) string {
	near := Of(word, among)
	if len(near) == 0 {
		return ""
	}
	return ": is it " + strings.Join(near, " or ") + "?"
}

// distance is the optimal string alignment distance of two words, in bytes. It is only right up to bound: beyond, it is more than that.
func distance(a, b string, bound int) int {
	if max(len(a)-len(b), len(b)-len(a)) > bound {
		return bound + 1
	}
	var before, last []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			wrong := 1
			if a[i-1] == b[j-1] {
				wrong = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+wrong)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
