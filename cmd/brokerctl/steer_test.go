package main_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
)

func TestNothingThatIsPrintedSteersATerminal(t *testing.T) {
	w := newWorld(t, map[string]string{"echo": working(t, "")})
	// A control sequence introducer of one character, a delete, an override of the direction: encoding/json leaves them as they are.
	s := w.broker.Dial(echo, client.Options{Title: "nightly\u009b2J\u007f\u202e\x1b[2J"})
	m := w.starts("monitor", "--since", "0", "--filter", broker.EventSessionOpened, "--json")
	event := m.line(w)
	for !strings.Contains(event, s.ID()) {
		event = m.line(w)
	}
	w.must(m.end.Close())
	m.exits(w)
	other := w.broker.Dial(echo, client.Options{})
	lines := w.starts("monitor", "--since", "0", "--filter", broker.EventSessionClosed)
	w.done("session close " + other.ID() + " --reason " + "nightly\u009b2J\x1b[2J\u202e")
	line := lines.line(w)
	for !strings.Contains(line, other.ID()[:8]) {
		line = lines.line(w)
	}
	w.must(lines.end.Close())
	lines.exits(w)
	for what, printed := range map[string]string{
		"an event":              event,
		"an event as a line":    line,
		"a list":                w.done("session list --endpoint " + echo),
		"a list as JSON":        w.done("session list --json --endpoint " + echo),
		"one session":           w.done("session inspect " + s.ID()),
		"one session as JSON":   w.done("session inspect --json " + s.ID()),
		"what a method answers": w.done("call fairlead.broker inspect {\"id\":\"" + s.ID() + "\"}"),
		"why a name is refused": w.ctl("service inspect nightly\u009b2J\x1b[2J\u202e").errs,
	} {
		if !strings.Contains(printed, "nightly") {
			t.Errorf("%s is %q", what, printed)
		}
		for _, r := range printed {
			if r != '\n' && !strconv.IsPrint(r) {
				t.Errorf("%s has %q: %q", what, r, printed)
			}
		}
		if strings.Contains(printed, "(malformed) (malformed)") {
			t.Errorf("%s says its code twice: %s", what, printed)
		}
	}
}
