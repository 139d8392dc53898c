package process_test

import (
	"bytes"
	"testing"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// FuzzParseStat parses lines of /proc/PID/stat whose name a process has chosen: no name changes what comes after it.
func FuzzParseStat(f *testing.F) {
	for _, name := range []string{"sleep", "", ") Z 1 1", "((", "a b) S 2", "\n", "\xff\x00"} {
		f.Add([]byte(name), []byte(" S 7 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 99 1 1"))
		f.Add([]byte(name), []byte("junk"))
	}
	f.Fuzz(func(t *testing.T, name, rest []byte) {
		if bytes.IndexByte(rest, ')') >= 0 {
			return // the kernel writes numbers and a letter
		}
		parent, start, err := process.ParseStat(append(append([]byte("1 ("), name...), append([]byte(")"), rest...)...))
		plainParent, plainStart, plainErr := process.ParseStat(append([]byte("1 (x)"), rest...))
		if parent != plainParent || start != plainStart || (err == nil) != (plainErr == nil) {
			t.Errorf("%q, %q: %d, %d, %v; and without that name %d, %d, %v", name, rest, parent, start, err, plainParent, plainStart, plainErr)
		}
	})
}
