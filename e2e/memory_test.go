package e2e_test

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
)

// mostHeld is what the memory that one hostile peer makes a process hold stays below, in bytes.
const mostHeld = 8 << 20

// keeps is what a Go process keeps of the memory that it had, in bytes: it is not given back while anything is in its pages.
const keeps = 6 << 20

// guard: budget of wire/session; without it unread streams alone cost more than 60 MiB. Each attack is made by a process of its own over one session, and
// measured while it holds what it could get.
func TestMemoryThatOneHostilePeerCanHoldIsBounded(t *testing.T) {
	w := newWorld(t)
	w.startBroker()
	rows := []string{
		"bursts on streams",
		"queued large replies",
		"maximal bodies,open large calls,descriptors,queued replies,unread streams,half a frame",
		"unread streams,queued large replies,maximal bodies",
		"streams that say nothing,queued large replies,open large calls,maximal bodies,pings,unread streams",
	}
	if *long {
		rows = append(slices.Sorted(maps.Keys(attacks)), rows...)
	}
	for _, kinds := range rows { // each has a target of its own: what the Go runtime keeps of one attack is not the next one's
		target := w.role("target")
		target.stdout.await(t, "ready")
		measuring := w.dial(measureEndpoint)
		ask(t, measuring)
		quiet := ask(t, measuring)
		p := w.role("attacker", targetEndpoint, kinds)
		p.stdout.await(t, "holding")
		held := ask(t, measuring)
		p.kill()
		var after cost
		eventually(t, "what was held is let go", func() bool {
			after = ask(t, measuring)
			return after.Goroutines <= quiet.Goroutines && after.Descriptors <= quiet.Descriptors && after.Memory < quiet.Memory+keeps
		})
		t.Logf("%s: %d KiB, %d goroutines and %d descriptors more; afterwards %d KiB", kinds, (held.Memory-quiet.Memory)>>10, held.Goroutines-quiet.Goroutines,
			held.Descriptors-quiet.Descriptors, (after.Memory-quiet.Memory)>>10)
		if held.Memory-quiet.Memory >= mostHeld {
			t.Errorf("%s: %d bytes more are held than before", kinds, held.Memory-quiet.Memory)
		}
		measuring.Close()
		target.stdin.Close()
		target.exit(t)
	}
}

// The broker serves an endpoint as an instance does. guard: budget of wire/session. Each attack has a broker of its own: what the Go runtime keeps of one is not the next one's.
func TestMemoryThatOneHostilePeerCanHoldInTheBrokerIsBounded(t *testing.T) {
	brokerd := filepath.Join(t.TempDir(), "brokerd")
	build(t, brokerd) // the race detector's own memory is another matter
	for _, kinds := range []string{"unread items,half a frame", "streams that say nothing,maximal bodies,pings,half a frame"} {
		t.Run(kinds, func(t *testing.T) {
			w := newWorld(t)
			w.brokerd = brokerd
			w.startBroker("GOMEMLIMIT=8MiB", "GOGC=10") // without the garbage
			w.dial(broker.Endpoint)
			before := w.settledMemory()
			p := w.role("attacker", broker.Endpoint, kinds)
			p.stdout.await(t, "holding")
			held := w.settledMemory() - before
			p.kill()
			t.Logf("%d KiB", held)
			if held >= mostHeld>>10 {
				t.Errorf("%d KiB more are held than before", held)
			}
		})
	}
}

func ask(t *testing.T, s *client.Session) cost {
	t.Helper()
	c, err := client.Call[cost](within(t, patience), s, "measure", nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
