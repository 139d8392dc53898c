package e2e_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// used returns the processor time of the broker, in the kernel's ticks of 10 ms: fields 14 and 15 of proc_pid_stat(5).
func (w *world) used() (ticks int) {
	w.t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(w.broker.pid()) + "/stat")
	if err != nil {
		w.t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			w.t.Fatal(err)
		}
		ticks += n
	}
	return ticks
}

func TestTheBrokerHasNoPartInTheCallsOfASession(t *testing.T) {
	w := newWorld(t, one)
	w.startBroker()
	w.role("echo").stdout.await(t, "ready")
	s := w.dial(echoEndpoint)
	if err := echo(t, s, patience, "before"); err != nil {
		t.Fatal(err)
	}
	const background = 2 // ticks: its own timers, and the news of the session
	calls, before := count(10_000, 100_000), w.used()
	for range calls {
		if err := echo(t, s, patience, "hi"); err != nil {
			t.Fatal(err)
		}
	}
	if spent := w.used() - before; spent > background {
		t.Errorf("the broker has used %d ticks over %d calls", spent, calls)
	}
}
