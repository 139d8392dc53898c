package cli

import (
	"strings"

	"github.com/fairlead-dev/fairlead/wire"
)

// maxLine is how much of a line of an error is shown, in bytes.
const maxLine = 4 << 10

// Said returns the text of an error as a terminal is shown it, whoever has written it: what is not printable is escaped, in Go's syntax, and the lines behind the first
// are indented, so that none of them looks as if it were a program's own.
func Said(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		lines[i] = wire.Printable(strings.ReplaceAll(line, "\t", "    "), maxLine)
	}
	return strings.Join(lines, "\n  ")
}
