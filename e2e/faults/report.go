package faults

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// A Report says what a machine has done and what it has checked.
type Report struct {
	Config   Config
	Rounds   int
	Took     time.Duration
	Findings []Finding

	mu       sync.Mutex
	faults   map[[2]string]int         // by kind and target
	acts     map[act]map[wire.Code]int // what became of what clients did
	commands map[string]map[wire.Code]int
	exits    map[string]int
	checks   map[string]int // how often what was compared
}

func newReport(c Config) *Report {
	return &Report{
		Config: c, faults: map[[2]string]int{}, acts: map[act]map[wire.Code]int{}, commands: map[string]map[wire.Code]int{}, exits: map[string]int{}, checks: map[string]int{},
	}
}

// hit notes a fault that has hit somebody.
func (r *Report) hit(f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults[[2]string{f.Kind, f.Target}]++
}

func (r *Report) commanded(what string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	tally(r.commands, what, wire.CodeOf(err))
}

func tally[K comparable](all map[K]map[wire.Code]int, what K, code wire.Code) {
	if all[what] == nil {
		all[what] = map[wire.Code]int{}
	}
	all[what][code]++
}

// exit notes the end of an actor.
func (r *Report) exit(kind string, state *os.ProcessState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exits[fmt.Sprintf("%s: %v", kind, state)]++
}

// checked notes that n things were checked.
func (r *Report) checked(what string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks[what] += n
}

// became notes what clients were told.
func (r *Report) became(all []outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range all {
		tally(r.acts, o.Act, o.Code)
	}
}

func (r *Report) kills() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for what, count := range r.faults {
		if what[0] == kill {
			n += count
		}
	}
	return n
}

// Kills is how many processes got a SIGKILL.
func (r *Report) Kills() int { return r.kills() }

// Markdown returns the report as tables.
func (r *Report) Markdown() string {
	kills := r.kills()
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "Seed %d, rounds %d to %d, %v: %d kills, %.0f a minute; %d client processes of %d clients, %d runtimes; findings: %d.\n",
		r.Config.Seed, r.Config.First, r.Config.First+r.Rounds-1, r.Took.Round(time.Second), kills, float64(kills)/r.Took.Minutes(),
		r.Config.Crowds, r.Config.Callers+r.Config.Lessees, r.Config.Runtimes, len(r.Findings))
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "\n- %v", f)
	}
	b.WriteString("\n| fault | of | times |\n| --- | --- | --- |\n")
	for _, what := range slices.SortedFunc(maps.Keys(r.faults), func(x, y [2]string) int {
		return cmp.Or(cmp.Compare(x[0], y[0]), -cmp.Compare(r.faults[x], r.faults[y]), cmp.Compare(x[1], y[1]))
	}) {
		fmt.Fprintf(&b, "| %s | %s | %d |\n", what[0], what[1], r.faults[what])
	}
	for _, what := range slices.Sorted(maps.Keys(r.commands)) {
		fmt.Fprintf(&b, "| command | %s | %s |\n", what, byCode(r.commands[what]))
	}
	b.WriteString("\n| clients did | done | failed |\n| --- | --- | --- |\n")
	for _, a := range slices.Sorted(maps.Keys(r.acts)) {
		failed := maps.Clone(r.acts[a])
		delete(failed, "")
		fmt.Fprintf(&b, "| %s | %d | %s |\n", actNames[a], r.acts[a][""], byCode(failed))
	}
	b.WriteString("\n| checked | times |\n| --- | --- |\n")
	for _, what := range slices.Sorted(maps.Keys(r.checks)) {
		fmt.Fprintf(&b, "| %s | %d |\n", what, r.checks[what])
	}
	return b.String()
}

// byCode lists codes with their numbers.
func byCode(all map[wire.Code]int) string {
	var list []string
	for _, code := range slices.SortedFunc(maps.Keys(all), func(x, y wire.Code) int { return cmp.Or(-cmp.Compare(all[x], all[y]), cmp.Compare(x, y)) }) {
		list = append(list, fmt.Sprintf("%s %d", cmp.Or(code, "done"), all[code]))
	}
	return strings.Join(list, ", ")
}
