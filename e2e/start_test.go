package e2e_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
)

// A failing service fails each start in the same way.
type failing struct {
	name   string
	files  func(folder string) (program []string) // writes what the program needs
	keys   string                                 // further keys of its service file
	code   wire.Code                              // what an open is told
	says   []string                               // what the text has
	waited time.Duration                          // how long after the open the fact is, where the program does not write it down
}

// script is a program that writes down when it is, says its last words, and ends as it is told.
func script(end string) func(string) []string {
	return func(folder string) []string {
		return []string{"/bin/sh", "-c", `echo last words >&2; date +%s%N > ` + folder + `/fact.new; mv ` + folder + `/fact.new ` + folder + `/fact; ` + end}
	}
}

const startTimeout = 300 * time.Millisecond

var failures = []failing{
	{name: "com.example.dies", files: script("exit 3"), code: wire.StartFailed, says: []string{"exit status 3", "last words"}},
	{name: "com.example.killed", files: script("kill -9 $$"), code: wire.StartFailed, says: []string{"signal: killed", "last words"}},
	{name: "com.example.nothing", files: script("exit 0"), code: wire.StartFailed, says: []string{"exit status 0", "last words"}},
	{name: "com.example.missing", files: func(folder string) []string { return []string{folder + "/missing"} },
		code: wire.StartFailed, says: []string{"no such file or directory"}},
	{name: "com.example.plain", files: func(folder string) []string {
		if err := os.WriteFile(folder+"/plain", nil, 0o644); err != nil {
			panic(err)
		}
		return []string{folder + "/plain"}
	}, code: wire.StartFailed, says: []string{"permission denied"}},
	{name: "com.example.mute", files: func(string) []string { return []string{"/bin/sh", "-c", "echo last words >&2; exec sleep 1000"} },
		keys: fmt.Sprintf("start_timeout = %q\n", startTimeout), code: wire.StartTimeout, says: []string{"last words"}, waited: startTimeout},
}

// serveFailures starts brokerd with the services that fail, and returns the folder in which each of them has one.
func (w *world) serveFailures() (folder string) {
	w.t.Helper()
	config := filepath.Join(w.dir, "config")
	if err := os.MkdirAll(filepath.Join(config, "services.d"), 0o755); err != nil {
		w.t.Fatal(err)
	}
	for _, f := range failures {
		own := filepath.Join(w.dir, f.name)
		if err := os.Mkdir(own, 0o755); err != nil {
			w.t.Fatal(err)
		}
		file := fmt.Sprintf("name = %q\nprogram = [%s]\nthrottle_interval = \"1ms\"\n%s", f.name, quoted(f.files(own)), f.keys)
		if err := os.WriteFile(filepath.Join(config, "services.d", f.name+".toml"), []byte(file), 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	w.serveFiles(config)
	return w.dir
}

func TestWhoOpensAServiceThatFailsIsToldHowAsSoonAsItIsKnown(t *testing.T) {
	w := newWorld(t)
	folder := w.serveFailures()
	for _, f := range failures {
		t.Run(f.name, func(t *testing.T) {
			var late []time.Duration
			for range count(5, 30) {
				w.reset(f.name)
				begun := time.Now()
				_, err := client.Dial(within(t, patience), f.name, client.Options{Socket: w.socket})
				told := time.Now()
				if !errors.Is(err, f.code) {
					t.Fatalf("%v, want %s", err, f.code)
				}
				for _, says := range f.says {
					if !strings.Contains(err.Error(), says) {
						t.Fatalf("%v, want one that says %q", err, says)
					}
				}
				late = append(late, told.Sub(f.fact(t, filepath.Join(folder, f.name), begun)))
			}
			slices.Sort(late)
			t.Logf("told after the fact: median %v, most %v", late[len(late)/2], late[len(late)-1])
		})
	}
}

// fact returns when that happened which the client is told.
func (f failing) fact(t *testing.T, folder string, opened time.Time) time.Time {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "fact"))
	if errors.Is(err, os.ErrNotExist) {
		return opened.Add(f.waited)
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Unix(0, ns)
}

func TestACrashLoopThatIsSuspendedCostsNothing(t *testing.T) {
	w := newWorld(t)
	config := filepath.Join(w.dir, "config")
	if err := os.MkdirAll(filepath.Join(config, "services.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	const name = "com.example.loop"
	file := fmt.Sprintf("name = %q\nprogram = [\"/bin/false\"]\nkeep_alive = \"always\"\nthrottle_interval = \"1ms\"\n", name)
	if err := os.WriteFile(filepath.Join(config, "services.d", name+".toml"), []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	w.serveFiles(config)
	open := func() error {
		_, err := client.Dial(within(t, patience), name, client.Options{Socket: w.socket})
		return err
	}
	eventually(t, "the service is suspended", func() bool { return errors.Is(open(), wire.Suspended) })
	span := time.Duration(count(2, 10)) * time.Second
	before, begun := w.processor(), time.Now()
	<-time.After(span) // what is measured is this time
	cost, took := w.processor()-before, time.Since(begun)
	t.Logf("%v of a processor in %v", cost, took)
	if cost > took/100 {
		t.Error("that is more than 1 %")
	}
	opens := count(100, 1000)
	before, begun = w.processor(), time.Now()
	for range opens {
		if err := open(); !errors.Is(err, wire.Suspended) {
			t.Fatalf("%v, want %s", err, wire.Suspended)
		}
	}
	t.Logf("%d opens are refused within %v each and cost %v of a processor each", opens, time.Since(begun)/time.Duration(opens), (w.processor()-before)/time.Duration(opens))
}

// processor returns the time that the broker's threads have had of the processors, see Documentation/scheduler/sched-stats.rst of Linux.
func (w *world) processor() (d time.Duration) {
	w.t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", w.broker.pid()))
	if err != nil || len(threads) == 0 {
		w.t.Fatalf("the broker's threads: %v, %v", threads, err)
	}
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			w.t.Fatal(err) // the Go runtime ends no thread of its own
		}
		had, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(had, 10, 64)
		if err != nil {
			w.t.Fatal(err)
		}
		d += time.Duration(ns)
	}
	return d
}
