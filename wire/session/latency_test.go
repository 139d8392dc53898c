package session_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// latencies are how long the last of many calls took. They take their memory when they are made. One goroutine uses them.
type latencies struct {
	n    int
	took []time.Duration
}

func newLatencies() *latencies { return &latencies{took: make([]time.Duration, 1<<17)} }

// since adds what has passed since began.
func (l *latencies) since(began time.Time) {
	l.took[l.n%len(l.took)] = time.Since(began)
	l.n++
}

// at returns what this part of the calls, from 0 to 1, took at most.
func (l *latencies) at(part float64) time.Duration {
	took := slices.Clone(l.took[:min(l.n, len(l.took))])
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(len(took)-1, int(part*float64(len(took))))]
}

func (l *latencies) String() string {
	return fmt.Sprintf("%d of p50 %v, p99 %v, max %v", l.n, l.at(0.5), l.at(0.99), l.at(1))
}

// machineLoad returns how many processes of this machine wanted to run in the last minute: what a measurement is worth.
func machineLoad() string {
	b, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(b), " ")
	return "load " + one
}

// standing returns how many goroutines there are when none comes or goes for a while.
func standing(t testing.TB) (n int) {
	t.Helper()
	for same := 0; same < 20; time.Sleep(time.Millisecond) {
		if now := runtime.NumGoroutine(); now == n {
			same++
		} else {
			n, same = now, 0
		}
	}
	return n
}

// channel is what carries the message channel of the tests' sessions.
func channel() string {
	if lane {
		return "lane"
	}
	return "stream"
}
