package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/cmd/internal/bench"
	"github.com/fairlead-dev/fairlead/internal/cli"
)

// benchPatience is how long a bench may take without --timeout.
const benchPatience = 10 * time.Minute

// benchBroker is what the help of each bench says of the broker.
const benchBroker = `It starts a private brokerd in a temporary folder and stops it again: the brokerd beside this program, else that in $PATH. A broker
that runs already is touched only if --socket or --system names it. It must let this user register fairlead.bench.PID, as only
root and its own user may, and has to bear the load.
`

// benchVerbs are the benches.
func (c *command) benchVerbs() []verb {
	return []verb{
		{
			name: "bench call", all: c.benched(bench.Call, bench.Options{Payload: 64, Callers: 1, Sessions: 1}), patience: benchPatience,
			about: "what a call costs, beside a raw socket", flags: []string{"time", "count", "payload", "callers", "sessions", "pause"},
			more:     benchBroker + "Raw is as many bytes there and back on a raw Unix socket, one for each caller. Figures are medians of five rounds.",
			examples: []string{"bench call", "bench call --callers 64 --json", "bench call --pause 10ms --time 5s"},
		},
		{
			name: "bench open", all: c.benched(bench.Open, bench.Options{Payload: 64, Callers: 1}), patience: benchPatience,
			about: "what a session costs that is opened, used once and closed", flags: []string{"time", "count", "payload", "callers", "pause"},
			more:     benchBroker + "Raw is a raw Unix socket that is connected, used once and closed. Figures are medians of five rounds.",
			examples: []string{"bench open", "bench open --callers 8"},
		},
		{
			name: "bench stream", all: c.benched(bench.Stream, bench.Options{Payload: 64 << 10}), patience: benchPatience,
			about: "what a stream carries, beside a raw socket and plain yamux", flags: []string{"time", "count", "payload", "callers"},
			more: benchBroker + "Raw is a raw Unix socket, plain yamux a stream of yamux as it comes, without a session of Fairlead's around it; writes have --payload\n" +
				"bytes. --callers call meanwhile, with 64 bytes: on the same session, each on a raw socket, and each on a stream of the same yamux\n" +
				"session, which it keeps. Figures are medians of five rounds.",
			examples: []string{"bench stream", "bench stream --callers 16 --payload 1024"},
		},
		{
			name: "bench lease", all: c.benched(bench.Lease, bench.Options{Payload: 64}), patience: benchPatience,
			about: "what a lease costs, and how soon a dead holder's address is free", flags: []string{"time", "count", "payload", "network", "held"},
			more: benchBroker + "Its network is private, too. Fairlead is an allocate with its release, raw two round trips on a raw Unix socket. A holder is a process\n" +
				"that opens a session, allocates and is killed: what it took for that, and from SIGKILL until its address is allocated again.",
			examples: []string{"bench lease", "bench lease --held 60000"},
		},
		{
			name: "bench idle", all: c.benchIdle, patience: benchPatience,
			about: "what idle sessions cost: memory, descriptors, and what else takes longer", flags: []string{"time", "count", "payload", "sessions", "leased", "network"},
			more: benchBroker + "Raw is the raw peer with as many connections. Memory is what the process has grown by for each, garbage included for a process that\n" +
				"cannot be asked to collect it: the broker and, with --leased, the network service.",
			examples: []string{"bench idle", "bench idle --sessions 9000 --leased"},
		},
	}
}

// benchFlags are those of the benches. A zero is the bench's own value.
func (c *command) benchFlags(flags *pflag.FlagSet) {
	o := &c.bench
	flags.DurationVar(&o.Time, "time", time.Second, "how long each thing is measured, in all its rounds: 1ms to 1m")
	flags.IntVar(&o.Count, "count", 0, "how often each thing is done, instead of --time: `N`")
	flags.IntVar(&o.Payload, "payload", 0, "`BYTES` of a request and of its reply, or of one write to a stream; 0: 64, and 65536 to a stream")
	flags.IntVar(&o.Callers, "callers", 0, "`N` callers at once; 0: one, and none beside a stream")
	flags.IntVar(&o.Sessions, "sessions", 0, "`N` sessions that the callers share, or that are idle; 0: one, and 1000 idle ones")
	flags.DurationVar(&o.Pause, "pause", 0, "how long each caller rests before a call")
	flags.IntVar(&o.Held, "held", 0, "`N` leases that others hold meanwhile")
	flags.BoolVar(&o.Leased, "leased", false, "sessions of the network service that hold a lease each")
}

// benched returns a command that runs a bench and prints its result. own are its own values for the options that are zero.
func (c *command) benched(run func(context.Context, bench.Options) (*bench.Result, error), own bench.Options) func(context.Context) error {
	return func(ctx context.Context) error {
		r, err := benching(ctx, c, run, own)
		switch {
		case err != nil:
			return err
		case c.json:
			return c.printWhole(r)
		}
		return printBench(c.out, r)
	}
}

func (c *command) benchIdle(ctx context.Context) error {
	r, err := benching(ctx, c, bench.Idle, bench.Options{Payload: 64, Sessions: 1000})
	switch {
	case err != nil:
		return err
	case c.json:
		return c.printWhole(r)
	}
	return printIdle(c.out, r)
}

// benching runs a bench until it is done, or is told to stop.
func benching[R any](ctx context.Context, c *command, run func(context.Context, bench.Options) (R, error), own bench.Options) (r R, err error) {
	o := c.bench
	o.Payload, o.Callers, o.Sessions = cmp.Or(o.Payload, own.Payload), cmp.Or(o.Callers, own.Callers), cmp.Or(o.Sessions, own.Sessions, 1)
	o.Socket, o.Network = c.socket, c.network
	if err := o.Check(); err != nil {
		return r, usageError{err.Error()}
	}
	if o.Socket == "" {
		if o.Brokerd, err = findBrokerd(); err != nil {
			return r, err
		}
	}
	if f, ok := c.errs.(*os.File); ok && cli.Terminal(f) {
		const clear = "\r\x1b[K" // the line, by ECMA-48
		o.Progress = func(text string) { fmt.Fprint(f, clear, text) }
		defer fmt.Fprint(f, clear)
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return run(ctx, o)
}

// findBrokerd returns the brokerd that was installed with this program, or that in $PATH.
func findBrokerd() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "brokerd")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath("brokerd")
	if err != nil {
		return "", errors.New("there is no brokerd beside brokerctl or in $PATH to measure with: install it, or give --socket or --system for a broker that runs")
	}
	return filepath.Abs(path)
}

// printWhole prints an object that has its version itself.
func (c *command) printWhole(value any) error {
	b, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	_, err = c.out.Write(append(b, '\n'))
	return err
}

// printBench prints what a bench has measured.
func printBench(w io.Writer, r *bench.Result) error {
	rate := calls
	if r.Bench == "stream" {
		rate = megabytes
	}
	t, add := benchTable(), addRow
	if r.Yamux != nil {
		t, add = benchTable("TIMES YAMUX P50", "TIMES YAMUX RATE"), addRowBesideYamux
	}
	add(t, bench.Row{Name: "raw", Figures: r.Raw}, rate)
	if r.Yamux != nil {
		add(t, *r.Yamux, rate)
	}
	add(t, bench.Row{Name: "fairlead", Figures: r.Fairlead, Of: "raw", Ratio: &r.Ratio, RatioYamux: r.RatioYamux}, rate)
	for _, row := range r.Rows {
		add(t, row, calls)
	}
	if err := t.Print(w); err != nil || r.BrokerCPU == nil {
		return err
	}
	_, err := fmt.Fprintf(w, "the broker used %v of processor time\n", *r.BrokerCPU)
	return err
}

func printIdle(w io.Writer, r *bench.IdleResult) error {
	t := cli.NewTable("EACH OF "+fmt.Sprint(r.Sessions), "MEMORY", "DESCRIPTORS", "HEAP+STACKS", "GOROUTINES")
	for _, row := range []struct {
		name string
		bench.Footprint
	}{{"raw", r.Raw}, {"fairlead", r.Fairlead}, {"broker", r.Broker}} {
		t.Row(row.name, kib(&row.Memory), fmt.Sprintf("%.2f", row.Descriptors), kib(row.Heap), part(row.Goroutines))
	}
	var out bytes.Buffer
	t.Print(&out) // a Buffer takes all
	fmt.Fprintln(&out)
	t = benchTable()
	for _, row := range r.Rows {
		addRow(t, row, calls)
	}
	t.Print(&out)
	_, err := w.Write(out.Bytes())
	return err
}

func benchTable(more ...string) *cli.Table {
	return cli.NewTable(append([]string{"WHAT", "P50", "P90", "P99", "MAX", "RATE", "TIMES P50", "TIMES RATE", "OF"}, more...)...)
}

// addRow adds one thing that was measured. rate shows its rate.
func addRow(t *cli.Table, r bench.Row, rate func(float64) string) { t.Row(rowCells(r, rate)...) }

// addRowBesideYamux adds one thing that was measured, and how it stands to plain yamux.
func addRowBesideYamux(t *cli.Table, r bench.Row, rate func(float64) string) {
	t.Row(append(rowCells(r, rate), ratioCells(r.RatioYamux)...)...)
}

func rowCells(r bench.Row, rate func(float64) string) []string {
	cells := []string{r.Name, short(r.P50), short(r.P90), short(r.P99), short(r.Max), rate(r.Rate)}
	return append(append(cells, ratioCells(r.Ratio)...), r.Of)
}

func ratioCells(r *bench.Ratio) []string {
	if r == nil {
		return []string{"", ""}
	}
	return []string{fmt.Sprintf("%.2f", r.P50), fmt.Sprintf("%.2f", r.Rate)}
}

// short shows a time with some three digits.
func short(d time.Duration) string {
	switch {
	case d < 100*time.Microsecond:
		return d.Round(100 * time.Nanosecond).String()
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < 100*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

func calls(rate float64) string { return fmt.Sprintf("%.0f/s", rate) }

func megabytes(rate float64) string { return fmt.Sprintf("%.0f MB/s", rate/1e6) }

func kib(bytes *float64) string {
	if bytes == nil {
		return ""
	}
	return fmt.Sprintf("%.2f KiB", *bytes/1024)
}

func part(n *float64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%.2f", *n)
}
