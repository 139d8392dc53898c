package bench_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/cmd/internal/bench"
)

// patience is how long an event may take.
const patience = 20 * time.Second

// leavesNothing checks, when the test is over, that no goroutine, no descriptor and no file is left of it.
func leavesNothing(t *testing.T) {
	t.Helper()
	folder, err := os.MkdirTemp("", "bench-") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	t.Setenv("TMPDIR", folder)
	goroutines, descriptors := runtime.NumGoroutine(), count(t, "/proc/self/fd")
	t.Cleanup(func() {
		for deadline := time.Now().Add(patience); runtime.NumGoroutine() > goroutines || count(t, "/proc/self/fd") > descriptors || count(t, folder) > 0; {
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<20)
				t.Fatalf("left are %d goroutines of %d before, %d descriptors of %d, and %d files\n%s",
					runtime.NumGoroutine(), goroutines, count(t, "/proc/self/fd"), descriptors, count(t, folder), stacks[:runtime.Stack(stacks, true)])
			}
			time.Sleep(time.Millisecond)
		}
	})
}

func count(t *testing.T, folder string) int {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestABenchMeasuresEverySideEquallyOftenAndLeavesNothing(t *testing.T) {
	leavesNothing(t)
	o := bench.Options{Socket: brokertest.Start(t).Socket, Time: time.Second, Count: 20, Payload: 64, Callers: 2, Sessions: 1}
	for name, run := range map[string]func(context.Context, bench.Options) (*bench.Result, error){"call": bench.Call, "open": bench.Open, "stream": bench.Stream} {
		r, err := run(t.Context(), o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if r.Bench != name || r.Raw.Count != 20 || r.Fairlead.Count != 20 || r.Fairlead.P50 <= 0 || r.Fairlead.Rate <= 0 {
			t.Errorf("%+v", r)
		}
		switch {
		case name != "stream":
			if r.Yamux != nil || r.RatioYamux != nil {
				t.Errorf("%s: plain yamux is %+v", name, r.Yamux)
			}
		case r.Yamux == nil || r.Yamux.Count != 20 || r.Yamux.Rate <= 0 || r.Yamux.Ratio == nil || r.RatioYamux == nil || r.RatioYamux.Rate <= 0:
			t.Errorf("beside plain yamux: %+v", r)
		default:
			besideYamux(t, r.Rows)
		}
	}
}

// besideYamux checks that calls are measured beside each stream, and Fairlead's compared with those of plain yamux.
func besideYamux(t *testing.T, rows []bench.Row) {
	t.Helper()
	var names []string
	for _, row := range rows {
		names = append(names, row.Name)
		if row.Count == 0 || (row.RatioYamux != nil) != (row.Name == "calls beside it") {
			t.Errorf("%+v", row)
		}
	}
	if want := []string{"raw calls beside it", "calls beside it", "plain yamux calls beside it"}; !slices.Equal(names, want) {
		t.Errorf("the rows are %q, want %q", names, want)
	}
}

// The broker lives: nothing but its context ends the bench.
func TestABenchThatIsCanceledLeavesNothing(t *testing.T) {
	leavesNothing(t)
	enough := errors.New("enough")
	o := bench.Options{Socket: brokertest.Start(t).Socket, Time: 2 * time.Second, Payload: 64, Callers: 2, Sessions: 2}
	for _, test := range []struct {
		name, side string
		run        func(context.Context, bench.Options) (*bench.Result, error)
	}{{"call", "fairlead", bench.Call}, {"open", "fairlead", bench.Open}, {"stream", "fairlead", bench.Stream}, {"stream", "plain yamux", bench.Stream}} {
		ctx, cancel := context.WithCancelCause(t.Context())
		o.Progress = func(text string) {
			if text == "round 1 of 5: "+test.side {
				cancel(enough)
			}
		}
		if _, err := test.run(ctx, o); !errors.Is(err, enough) {
			t.Errorf("%s at %s: %v", test.name, test.side, err)
		}
	}
}

func TestASocketThatIsTooLongIsNamed(t *testing.T) {
	leavesNothing(t)
	folder := filepath.Join(os.TempDir(), strings.Repeat("x", 100))
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(folder) })
	t.Setenv("TMPDIR", folder)
	if _, err := bench.Call(t.Context(), bench.Options{Socket: "unused"}); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Error(err)
	}
}
