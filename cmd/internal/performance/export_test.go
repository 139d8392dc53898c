package main

import (
	"maps"
	"slices"
)

// Parts of the program.
var (
	Marked = marked
	Fill   = fill
	Count  = count
)

// Tables returns the names of all tables.
func Tables() []string { return slices.Sorted(maps.Keys(tables)) }

// Marks returns what 'go test -bench' has printed: the figures by name and unit.
func Marks(text string) (map[string]map[string]float64, error) {
	list, err := marks(text)
	all := map[string]map[string]float64{}
	for _, m := range list {
		all[m.name] = m.figures
	}
	return all, err
}
