package stage

import (
	"bufio"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// An Output is what a process has written to a pipe so far, in lines. Its methods may be called from any goroutine.
type Output struct {
	patience time.Duration
	done     chan struct{} // closed when all was read

	mu      sync.Mutex
	lines   []string
	read    int // lines that TryNext has returned
	ended   bool
	changed chan struct{} // closed when a line or the end comes
}

// Collect reads r to its end, and closes it. Who waits for a line waits for patience at most.
func Collect(r *os.File, patience time.Duration) *Output {
	o := &Output{patience: patience, done: make(chan struct{}), changed: make(chan struct{})}
	go func() {
		defer close(o.done)
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

// Done is closed when there is no more to read.
func (o *Output) Done() <-chan struct{} { return o.done }

func (o *Output) add(line string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if line != "" || err == nil {
		o.lines = append(o.lines, line)
	}
	o.ended = err != nil
	close(o.changed)
	o.changed = make(chan struct{})
}

// Find returns the first line from number from on that satisfies ok, and its number. It waits for it. It fails with io.EOF or os.ErrDeadlineExceeded.
func (o *Output) Find(from int, ok func(string) bool) (line string, at int, err error) {
	late := time.After(o.patience)
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

// TryNext waits for the next line that it has not returned yet. It fails as Find does.
func (o *Output) TryNext() (string, error) {
	o.mu.Lock()
	from := o.read
	o.mu.Unlock()
	line, at, err := o.Find(from, func(string) bool { return true })
	if err == nil {
		o.mu.Lock()
		o.read = at + 1
		o.mu.Unlock()
	}
	return line, err
}

// String returns what there is so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.lines, "\n")
}

// Last returns the last lines that there are so far, at most so many.
func (o *Output) Last(lines int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.lines[max(0, len(o.lines)-lines):], "\n")
}
