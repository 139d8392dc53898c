package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A part is a Go benchmark, with what it is called in the table.
type part struct{ name, folder, bench string }

// theParts are what a call, an open and a lease are made of. A benchmark that begins with the name is one row.
var theParts = []part{
	{"walk", "./wire", "Walk"},
	{"encode", "./wire", "Encode"},
	{"decode, with its walk", "./wire", "Decode"},
	{"header, written and read", "./wire", "Header"},
	{"frame, written and read", "./wire", "Frame"},
	{"call, both sides in one process", "./wire/session", "Call"},
	{"value there and back on a streaming call", "./wire/session", "Item"},
	{"open, call and close, all in one process", "./broker", "OpenCallClose"},
	{"allocate and release in the pool", "./services/network/pool", "AllocateRelease"},
	{"a watch added and removed, beside 9,000", "./internal/watch", "AddRemove"},
	{"all holders asked whether they live", "./internal/watch", "Ask"},
}

// A mark is one line of a Go benchmark: its name without "Benchmark" and the number of processors, and its figures by their units.
type mark struct {
	name    string
	figures map[string]float64
}

var markLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.+)$`)

// marks reads what 'go test -bench' has printed.
func marks(text string) (list []mark, err error) {
	for _, m := range markLine.FindAllStringSubmatch(text, -1) {
		fields := strings.Fields(m[2])
		b := mark{m[1], map[string]float64{}}
		for i := 0; i+1 < len(fields); i += 2 {
			if b.figures[fields[i+1]], err = strconv.ParseFloat(fields[i], 64); err != nil {
				return nil, fmt.Errorf("%q: %w", m[0], err)
			}
		}
		list = append(list, b)
	}
	return list, nil
}

// goBench runs a Go benchmark and all below it. Where the tests run twice, as those of wire/session do, the first run counts.
func (r *runner) goBench(folder, name string, args ...string) ([]mark, error) {
	out, err := r.output("go", append([]string{"test", "-run", "^$", "-bench", "^Benchmark" + name + "$", folder}, args...)...)
	if err != nil {
		return nil, err
	}
	list, err := marks(string(out))
	seen := map[string]bool{}
	list = slices.DeleteFunc(list, func(m mark) bool {
		again := seen[m.name]
		seen[m.name] = true
		return again
	})
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("no Benchmark%s in %s:\n%s", name, folder, out)
	}
	return list, err
}

func parts(r *runner) (string, error) {
	t := table{{"", "time", "bytes allocated", "allocations"}}
	for _, p := range theParts {
		list, err := r.goBench(p.folder, p.bench, "-benchtime", "200ms")
		if err != nil {
			return "", err
		}
		slices.SortFunc(list, func(a, b mark) int { return cmp.Compare(a.figures["ns/op"], b.figures["ns/op"]) }) // some come out of a map
		for _, m := range list {
			_, below, _ := strings.Cut(m.name, "/")
			if strings.HasPrefix(below, "stream/") { // sessions without the lane are there for those who cannot have one
				continue
			}
			name := p.name
			if below = strings.TrimPrefix(below, "lane/"); below != "" && below != "lane" {
				name += ": " + strings.ReplaceAll(strings.ReplaceAll(below, "_", " "), "=", " ")
			}
			t.row(name, nanoseconds(m.figures["ns/op"]), count(m.figures["B/op"]), count(m.figures["allocs/op"]))
		}
	}
	return t.String(), nil
}
