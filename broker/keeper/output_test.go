package keeper_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/broker/keeper"
)

// count is what seq(1) prints.
func count(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strconv.Itoa(i+1) + "\n")
	}
	return b.String()
}

func TestAllThatTheProgramWritesIsInTheLogWhenItHasEnded(t *testing.T) {
	leavesNothing(t)
	c := shell(t, "seq 100000; exit 1")
	k := start(t, c)
	outcome(t, k)
	if got := text(c.Log); got != count(100000) {
		t.Errorf("the log has %d bytes, want %d", len(got), len(count(100000)))
	}
	if info, err := os.Stat(c.Log); err != nil || info.Mode() != 0o600 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
}

func TestALogIsBoundedAndTwoAreKept(t *testing.T) {
	leavesNothing(t)
	const bound = 100_000
	t.Cleanup(keeper.SetMaxLog(bound))
	for _, lines := range []int{10_000, 40_000, 200_000} { // one log, three, and more
		c := shell(t, "seq "+strconv.Itoa(lines))
		outcome(t, start(t, c))
		var got strings.Builder
		for _, name := range []string{c.Log + ".2", c.Log + ".1", c.Log} {
			if len(text(name)) > bound {
				t.Errorf("%s has %d bytes", filepath.Base(name), len(text(name)))
			}
			got.WriteString(text(name))
		}
		want := count(lines)
		if len(want) < 2*bound && got.String() != want || !strings.HasSuffix(want, got.String()) || len(got.String()) < min(len(want), bound) {
			t.Errorf("of %d bytes the logs have %d", len(want), len(got.String()))
		}
		if files, _ := filepath.Glob(c.Log + "*"); len(files) > 3 {
			t.Errorf("there are %v", files)
		}
	}
}

func TestALogIsAppendedTo(t *testing.T) {
	leavesNothing(t)
	c := shell(t, "echo again; echo loudly >&2")
	for range 2 {
		outcome(t, start(t, c))
	}
	if got := text(c.Log); strings.Count(got, "again\n") != 2 || strings.Count(got, "loudly\n") != 2 {
		t.Errorf("the log is %q", got)
	}
}

func TestEachOutputGoesWhereItShall(t *testing.T) {
	leavesNothing(t)
	c := shell(t, "echo one; echo two >&2")
	out := write(t, "out", "before\n", 0o600)
	err := filepath.Join(t.TempDir(), "err")
	c.Stdout, c.Stderr = keeper.Output{Path: out}, keeper.Output{Path: err}
	o := outcome(t, start(t, c))
	if text(out) != "before\none\n" || text(err) != "two\n" || text(c.Log) != "" {
		t.Errorf("they are %q and %q, and the log is %q", text(out), text(err), text(c.Log))
	}
	if len(o.Stderr) != 1 || o.Stderr[0] != "two" {
		t.Errorf("the last lines are %q", o.Stderr)
	}
	if info, err := os.Stat(err); err != nil || info.Mode() != 0o640 {
		t.Errorf("the mode is %v, %v", info, err)
	}
	both := shell(t, "echo one; echo two >&2")
	both.Stdout, both.Stderr = keeper.Output{Path: out}, keeper.Output{Path: out}
	outcome(t, start(t, both))
	if got := text(out); !strings.Contains(got, "two\n") || strings.Count(got, "one\n") != 2 {
		t.Errorf("both in one file are %q", got)
	}
}

// inherited has the test's standard error be a pipe, and returns its other end.
func inherited(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stderr
	os.Stderr = w
	t.Cleanup(func() { os.Stderr = before; w.Close(); r.Close() })
	return r
}

func TestTheBrokersStandardErrorIsInherited(t *testing.T) {
	leavesNothing(t)
	r := inherited(t)
	c := shell(t, "echo one; echo two >&2")
	c.Stdout, c.Stderr = keeper.Output{Inherit: true}, keeper.Output{Inherit: true}
	k := start(t, c)
	outcome(t, k)
	b := make([]byte, 100)
	n, err := io.ReadAtLeast(r, b, len("one\ntwo\n"))
	if got := string(b[:n]); err != nil || !strings.Contains(got, "one\n") || !strings.Contains(got, "two\n") {
		t.Errorf("it says %q, %v", got, err)
	}
}

// Each program writes more than a pipe holds, and must reach its end.
func TestOutputThatCannotBeWrittenDoesNotStopTheProgram(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	target := write(t, "target", "untouched", 0o600)
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		change func(*testing.T, *keeper.Config)
	}{
		{"full disk", func(_ *testing.T, c *keeper.Config) { c.Stdout.Path = "/dev/full" }},
		{"missing folder", func(_ *testing.T, c *keeper.Config) { c.Log = target + "/no/log" }},
		{"link", func(_ *testing.T, c *keeper.Config) { c.Log = link }},
		{"no log", func(_ *testing.T, c *keeper.Config) { c.Log = "" }},
		{"nobody reads standard error", func(t *testing.T, c *keeper.Config) { inherited(t); c.Stdout.Inherit = true }},
		{"standard error is closed", func(t *testing.T, c *keeper.Config) { inherited(t).Close(); c.Stdout.Inherit = true }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leavesNothing(t)
			c := shell(t, "seq 100000; echo done >&2; exit 4")
			tt.change(t, &c)
			if o := outcome(t, start(t, c)); o.Code != 4 || fmt.Sprint(o.Stderr) != "[done]" {
				t.Errorf("it ended with %v, %q", o, o.Stderr)
			}
		})
	}
	if text(target) != "untouched" {
		t.Errorf("a link was followed: %q", text(target))
	}
}

func TestWhatWasLostIsTold(t *testing.T) {
	leavesNothing(t)
	folder := filepath.Join(t.TempDir(), "folder")
	mark := filepath.Join(t.TempDir(), "mark")
	// It writes more than a pipe holds, so some of it was dropped before the mark is there.
	c := shell(t, "seq 50000; echo > "+mark+"; while [ ! -d "+folder+" ]; do sleep 0.01; done; echo whole; sleep 1000")
	c.Log = filepath.Join(folder, "log")
	start(t, c)
	until(t, "it has written", func() bool { return text(mark) != "" })
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	says(t, c, "whole\n")
	var lost int
	line, rest, _ := strings.Cut(text(c.Log), "\n")
	if _, err := fmt.Sscanf(line, "fairlead-keeper: %d bytes of output were lost here: no such file or directory", &lost); err != nil {
		t.Fatalf("the log begins with %q: %v", line, err)
	}
	if all := count(50000) + "whole\n"; lost == 0 || rest != all[min(lost, len(all)):] {
		t.Errorf("%d bytes were lost of %d, and %d are there", lost, len(all), len(rest))
	}
}

func TestALogThatIsRemovedIsMadeAnew(t *testing.T) {
	leavesNothing(t)
	mark := filepath.Join(t.TempDir(), "mark")
	c := shell(t, "echo one; while [ ! -e "+mark+" ]; do sleep 0.01; done; echo two; sleep 1000")
	start(t, c)
	says(t, c, "one\n")
	if err := os.Remove(c.Log); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, c, "two\n")
	if got := text(c.Log); got != "two\n" {
		t.Errorf("the log is %q", got)
	}
}
