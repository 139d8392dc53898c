package servicefile

import (
	"slices"
	"strings"
)

// hint returns what somebody may have meant by a key that there is not, in a table or, with an empty one, at the top; empty if nothing is near.
func hint(table, key string) string {
	if text := misplaced(table, key); text != "" {
		return text
	}
	for _, k := range keys {
		if slices.ContainsFunc(k.launchdKeys(), func(name string) bool { return name != "" && strings.EqualFold(name, key) }) {
			return ": what launchd calls " + key + " is " + k.Name + " here"
		}
	}
	best, least := "", len(key)/3+1
	for _, k := range keys {
		_, last, _ := strings.Cut(k.Name, ".")
		for _, name := range []string{k.Name, last} {
			d := distance(key, name)
			if len(key) >= 3 && strings.HasPrefix(name, key) {
				d = 1
			}
			if name != "" && d < least {
				best, least = k.Name, d
			}
		}
	}
	if best == "" {
		return ""
	}
	return ": did you mean " + best + "?"
}

// misplaced says where a key belongs that is in a table and that a service file has at its top.
func misplaced(table, key string) string {
	if table == "" || !slices.ContainsFunc(keys, func(k Key) bool { return k.Name == key }) {
		return ""
	}
	return ": " + key + " is no part of " + table + ", and belongs above the first [table]"
}

// longest is how many bytes of a key are compared with what it may have been.
const longest = 128

// distance returns how many bytes must be put in, left out, replaced or swapped with the next to make b of a (optimal string alignment). Long ones are not
// looked at: they are far.
func distance(a, b string) int {
	if len(a) > longest || len(b) > longest {
		return max(len(a), len(b))
	}
	rows := make([][]int, len(a)+1) // of a's first i bytes to b's first j
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
				continue
			}
			replaced := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			rows[i][j] = min(replaced, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
