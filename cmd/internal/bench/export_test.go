package bench

import "time"

// A Round is what one round has seen of a thing.
type Round struct {
	Took    []time.Duration
	Elapsed time.Duration
}

// Rows returns what rounds of things, named in this order, come to, each beside what of says.
func Rows(names []string, rounds map[string][]Round, of map[string]string) []Row {
	var m measured
	for _, name := range names {
		for _, r := range rounds[name] {
			m.add(name, counted(r.Took, r.Elapsed))
		}
	}
	return m.rows(of)
}
