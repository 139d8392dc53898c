package servicefile

import (
	"maps"
	"slices"
	"strings"

	"github.com/fairlead-dev/fairlead/internal/nearest"
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
	names := map[string]string{} // of keys, also without their table
	for _, k := range keys {
		_, last, _ := strings.Cut(k.Name, ".")
		for _, name := range []string{k.Name, last} {
			if len(key) >= 3 && strings.HasPrefix(name, key) {
				return ": did you mean " + k.Name + "?"
			}
			names[name] = k.Name
		}
	}
	if near := nearest.Of(key, slices.Sorted(maps.Keys(names))); len(near) > 0 {
		return ": did you mean " + names[near[0]] + "?"
	}
	return ""
}

// misplaced says where a key belongs that is in a table and that a service file has at its top.
func misplaced(table, key string) string {
	if table == "" || !slices.ContainsFunc(keys, func(k Key) bool { return k.Name == key }) {
		return ""
	}
	return ": " + key + " is no part of " + table + ", and belongs above the first [table]"
}
