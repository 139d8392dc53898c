package cli_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/internal/cli"
)

// guard: Said.
func TestAnErrorSteersNoTerminalAndForgesNoLine(t *testing.T) {
	for text, want := range map[string]string{
		"call x: no\n":                   "command: call x: no\n",
		"first\ncommand: all is well":    "command: first\n  command: all is well\n",
		"\x1b[2Jgone\ttab\r\u202e":       "command: \\x1b[2Jgone    tab\\r\\u202e\n",
		strings.Repeat("x", 4<<10) + "y": "command: " + strings.Repeat("x", 4<<10) + "…\n",
	} {
		var b strings.Builder
		if cli.Fail(&b, "command", errors.New(text), ""); b.String() != want {
			t.Errorf("%q is shown as %q, want %q", text, b.String(), want)
		}
	}
}
