package faults_test

import (
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/e2e/faults"
	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
)

var (
	long  = flag.Bool("long", false, "run the machine for a minute")
	last  = flag.Duration("faults", 0, "run the machine for so long")
	seed  = flag.Int64("seed", 0, "the seed of the plan; 0: one of the time")
	size  = flag.Int("crowds", 24, "how many client processes, of 10 clients each")
	keep  = flag.Bool("keep", false, "keep the folder in which something was found")
	into  = flag.String("report", "", "the document into which the report is written")
	first = flag.Int("round", 0, "the number of the first round")
)

func TestMain(m *testing.M) {
	faults.Play()
	flag.Parse()
	os.Exit(stage.Run(m))
}

// small is a machine for an ordinary test.
func small(t *testing.T) faults.Config {
	return faults.Config{Seed: 1, Programs: stage.Programs, Rounds: 1, Length: 3 * time.Second, Crowds: 6, Callers: 4, Lessees: 2, Runtimes: 3, Log: t.Logf}
}

func TestEverythingThatIsPromisedHoldsAmongFaults(t *testing.T) {
	c := small(t)
	switch {
	case *last > 0 || *long:
		c.For, c.Length, c.Crowds, c.Callers, c.Runtimes = *last, 0, *size, 8, 6
		if *long {
			c.For = max(c.For, time.Minute)
		}
	}
	c.Seed, c.First, c.Keep = *seed, *first, *keep
	if c.Seed == 0 {
		c.Seed = time.Now().UnixNano()
	}
	t.Logf("seed %d: go test ./e2e/faults -args -seed %d", c.Seed, c.Seed)
	report, err := faults.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", report.Markdown())
	for _, f := range report.Findings {
		t.Errorf("%v", f)
	}
	if *into != "" {
		write(t, *into, report.Markdown())
	}
}

// write writes the report between the marks of its table in a document.
func write(t *testing.T, path, report string) {
	t.Helper()
	const begin, end = "<!-- table soak -->\n", "<!-- end -->"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(rest, end)
	if !begun || !ended {
		t.Fatalf("%s has no table soak", path)
	}
	if err := os.WriteFile(path, []byte(before+begin+report+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
