package e2e_test

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
)

// An output is what a process of a test says.
type output struct {
	*stage.Output
	what string
}

// collect reads r to its end.
func collect(what string, r *os.File) output { return output{stage.Collect(r, patience), what} }

// next is TryNext for what must come.
func (o output) next(t *testing.T) string {
	t.Helper()
	line, err := o.TryNext()
	if err != nil {
		t.Fatalf("%s: no further line after %q: %v", o.what, o.String(), err)
	}
	return line
}

// await waits for a line that contains part, from the first line on.
func (o output) await(t *testing.T, part string) string {
	t.Helper()
	line, _, err := o.Find(0, func(line string) bool { return strings.Contains(line, part) })
	if err != nil {
		t.Fatalf("%s: no line with %q in %q: %v", o.what, part, o.String(), err)
	}
	return line
}

// whole waits for the end and returns all of it.
func (o output) whole(t *testing.T) string {
	t.Helper()
	if _, _, err := o.Find(0, func(string) bool { return false }); err != io.EOF {
		t.Fatalf("%s: no end: %v", o.what, err)
	}
	return o.String()
}
