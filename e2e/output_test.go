package e2e_test

import (
	"bufio"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// An output is what a process has written to a pipe so far, in lines.
type output struct {
	what string

	mu      sync.Mutex
	lines   []string
	read    int // lines that next has returned
	ended   bool
	changed chan struct{} // closed when a line or the end comes
}

// collect reads r to its end.
func collect(what string, r *os.File) *output {
	o := &output{what: what, changed: make(chan struct{})}
	go func() {
		defer r.Close()
		in := bufio.NewReader(r)
		for {
			line, err := in.ReadString('\n')
			o.add(strings.TrimSuffix(line, "\n"), err)
			if err != nil {
				return
			}
		}
	}()
	return o
}

func (o *output) add(line string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if line != "" || err == nil {
		o.lines = append(o.lines, line)
	}
	o.ended = err != nil
	close(o.changed)
	o.changed = make(chan struct{})
}

// find returns the first line from number from on that satisfies ok, and its number. It waits for it.
func (o *output) find(from int, ok func(string) bool) (line string, at int, err error) {
	late := time.After(patience)
	for {
		o.mu.Lock()
		changed, ended, lines := o.changed, o.ended, o.lines[min(from, len(o.lines)):]
		i := slices.IndexFunc(lines, ok)
		o.mu.Unlock()
		switch {
		case i >= 0:
			return lines[i], from + i, nil
		case ended:
			return "", 0, io.EOF
		}
		from += len(lines)
		select {
		case <-changed:
		case <-late:
			return "", 0, os.ErrDeadlineExceeded
		}
	}
}

// tryNext waits for the next line that it has not returned yet.
func (o *output) tryNext() (string, error) {
	o.mu.Lock()
	from := o.read
	o.mu.Unlock()
	line, at, err := o.find(from, func(string) bool { return true })
	if err == nil {
		o.mu.Lock()
		o.read = at + 1
		o.mu.Unlock()
	}
	return line, err
}

// next is tryNext for what must come.
func (o *output) next(t *testing.T) string {
	t.Helper()
	line, err := o.tryNext()
	if err != nil {
		t.Fatalf("%s: no further line after %q: %v", o.what, o.String(), err)
	}
	return line
}

// await waits for a line that contains part, from the first line on.
func (o *output) await(t *testing.T, part string) string {
	t.Helper()
	line, _, err := o.find(0, func(line string) bool { return strings.Contains(line, part) })
	if err != nil {
		t.Fatalf("%s: no line with %q in %q: %v", o.what, part, o.String(), err)
	}
	return line
}

// whole waits for the end and returns all of it.
func (o *output) whole(t *testing.T) string {
	t.Helper()
	if _, _, err := o.find(0, func(string) bool { return false }); err != io.EOF {
		t.Fatalf("%s: no end: %v", o.what, err)
	}
	return o.String()
}

// String returns what there is so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.lines, "\n")
}

// last returns the last lines that there are so far, at most so many.
func (o *output) last(lines int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.lines[max(0, len(o.lines)-lines):], "\n")
}
