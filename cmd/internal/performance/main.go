// Command performance measures what docs/performance.md says, and writes its tables: it is 'make bench'.
//
// It runs the benches of brokerctl and the Go benchmarks of the parts, in the folder of the module, and changes nothing of the document but what is between
// <!-- table NAME --> and <!-- end -->. If anything fails, the document stays as it was.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

func main() {
	span := pflag.Duration("time", 2*time.Second, "how long each thing is measured, in all its rounds")
	only := pflag.StringSlice("only", nil, "only the tables of this `NAME`; may be repeated")
	pflag.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: go run ./cmd/internal/performance [flags] DOCUMENT\n\nflags:\n%s", pflag.CommandLine.FlagUsages())
	}
	pflag.Parse()
	if pflag.NArg() != 1 {
		pflag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := measure(ctx, pflag.Arg(0), *span, *only); err != nil {
		fmt.Fprintln(os.Stderr, "performance:", err)
		os.Exit(1)
	}
}

// measure makes the tables, and writes them into the document.
func measure(ctx context.Context, path string, span time.Duration, only []string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	names, err := marked(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	folder, err := os.MkdirTemp("", "performance-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	r := &runner{ctx: ctx, folder: folder, time: span}
	if _, err := r.output("go", "build", "-o", folder+string(filepath.Separator), "./cmd/brokerd", "./cmd/brokerctl"); err != nil {
		return err
	}
	if len(only) == 0 {
		only = names
	}
	filled := string(text)
	for _, name := range only {
		draw, known := tables[name]
		if !known {
			return fmt.Errorf("there is no table %q", name)
		}
		table, err := draw(r)
		if err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
		if filled, err = fill(filled, name, table); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return os.WriteFile(path, []byte(filled), 0o644)
}

// A runner runs programs, with a folder for what it has built.
type runner struct {
	ctx    context.Context
	folder string
	time   time.Duration
}

// output runs a program and returns what it has printed. What it says on stderr is for whoever waits.
func (r *runner) output(program string, args ...string) ([]byte, error) {
	cmd := r.command(program, args...)
	cmd.Stderr = os.Stderr
	fmt.Fprintln(os.Stderr, "+", cmd)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return out, nil
}

// command returns a program that is asked to end when the runner is canceled.
func (r *runner) command(program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(r.ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	return cmd
}

// built returns the path of a program that was built for this run.
func (r *runner) built(name string) string { return filepath.Join(r.folder, name) }
