package main_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/client"
)

// busy has a session make one call after the other, until the test ends.
func (w *world) busy(on *client.Session) {
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			on.Call(ctx, "echo", note{Title: strings.Repeat("x", 1000)}, nil)
		}
	}()
	w.Cleanup(func() { cancel(); <-done })
}

func TestAWatchedListTellsWhatSessionsCarryEachSecond(t *testing.T) {
	w := typing(t)
	on, idle := w.broker.Dial(typed, client.Options{Title: "busy"}), w.broker.Dial(typed, client.Options{Title: "idle"})
	w.busy(on)
	objects := w.starts("session", "list", "--endpoint", typed, "--watch=100ms", "--json")
	type carried struct {
		Calls    float64 `json:"calls"`
		Received float64 `json:"bytes_received"`
	}
	w.until("the one is told as busy and the other as idle", func() bool {
		var list struct {
			Sessions []struct {
				ID      string
				Traffic *carried
				Rates   *carried
			}
		}
		w.must(json.Unmarshal([]byte(objects.line(w)), &list))
		told := 0
		for _, s := range list.Sessions {
			switch {
			case s.Rates == nil || s.Traffic == nil:
			case s.ID == on.ID() && s.Rates.Calls > 0 && s.Rates.Received > 1000*s.Rates.Calls && s.Traffic.Calls > 0:
				told++
			case s.ID == idle.ID() && s.Rates.Calls == 0 && s.Rates.Received == 0:
				told++
			}
		}
		return told == 2
	})
	table := w.starts("session", "list", "--endpoint", typed, "--watch=100ms", "--columns", "title,calls/s,in/s,out/s", "--sort", "calls/s", "--reverse")
	w.says(table.line(w), `^TITLE +CALLS/S +IN/S +OUT/S\n$`)
	w.until("the busy one stands first", func() bool {
		line := strings.Join(strings.Fields(table.line(w)), " ")
		return strings.HasPrefix(line, "busy ") && !strings.HasPrefix(line, "busy -") && !strings.HasPrefix(line, "busy 0.0 ")
	})
	o := w.ctl("session list --sort calls/s")
	if w.says(o.errs, `no column "calls/s"`); o.code != 2 {
		t.Errorf("without --watch there are no rates, and the exit code is %d", o.code)
	}
}

func TestAWatchedSessionAndTheStatusHaveRates(t *testing.T) {
	w := typing(t)
	on := w.broker.Dial(typed, client.Options{})
	w.busy(on)
	for _, test := range []struct{ pattern, line string }{
		{"rates      ", "session inspect " + on.ID() + " --watch=100ms"},
		{" opened and ", "status --watch=100ms"},
	} {
		f := w.starts(strings.Fields(test.line)...)
		w.until(test.line+" tells rates", func() bool { return strings.Contains(f.line(w), test.pattern) })
	}
}
