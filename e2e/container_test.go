package e2e_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
	"github.com/fairlead-dev/fairlead/services/network"
)

// daemons is a shell script that starts n processes, each in a session of its own, without a parent, and deaf to SIGTERM.
func daemons(n int) string {
	return fmt.Sprintf(`trap '' TERM HUP; i=0; while [ $i -lt %d ]; do (setsid sleep 1000 &); i=$((i+1)); done; `, n)
}

func TestNothingOutlivesAKilledRuntimeAndItsAddressIsNotGivenOutBefore(t *testing.T) {
	huge := fmt.Sprintf("%s=hog setsid %s %d & ", roleVariable, self(), count(64<<20, 1<<30))
	for _, c := range []struct {
		name      string
		script    string
		processes int
		within    time.Duration
		runs      int
	}{
		{"10 processes", daemons(10), 10, 100 * time.Millisecond, count(5, 20)},
		{"300 processes, one of them large", daemons(299) + huge, 300, time.Second, count(2, 5)},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, one)
			w.startBroker()
			var took, given []time.Duration
			for range c.runs {
				gone, leased := w.killCrowd(c.script, c.processes)
				took, given = append(took, gone), append(given, leased)
			}
			t.Logf("all processes were gone after the SIGKILL, %s", spread(took))
			t.Logf("the address was given to the next, %s", spread(given))
			if took[len(took)/2] > c.within || took[len(took)-1] > 10*c.within {
				t.Errorf("that is more than %v", c.within)
			}
		})
	}
}

// killCrowd kills a runtime whose container has so many processes. It returns after what time the last of them was gone, and after what time the
// one address was given to somebody who had asked for it at once.
func (w *world) killCrowd(script string, processes int) (gone, leased time.Duration) {
	w.t.Helper()
	r := w.run("--", "sh", "-c", script+"echo up; sleep 1000")
	r.stdout.await(w.t, "up")
	members := func() []stage.Process {
		return slices.DeleteFunc(stage.Named("FAIRLEAD_SOCKET="+w.socket), func(s stage.Process) bool { return s.Args[0] != "sleep" && s.Args[0] != self() })
	}
	eventually(w.t, "all processes run", func() bool { return len(members()) == processes+1 }) // and the shell's own sleep
	if processes > 100 {
		r.stdout.await(w.t, "touched")
	}
	others := []int{r.pid(), w.broker.pid(), w.instance().PID}
	all := watch(w.t, slices.DeleteFunc(stage.Named("FAIRLEAD_SOCKET="+w.socket), func(s stage.Process) bool { return slices.Contains(others, s.PID) }))
	next := w.dial(network.Endpoint)
	defer next.Close()

	begun := monotonic()
	r.kill()
	done := make(chan time.Duration, 1)
	go func() {
		lease, err := network.Allocate(within(w.t, patience), next, network.Request{})
		switch left := alive(all); {
		case err != nil:
			w.t.Errorf("the next allocate: %v", err)
		case len(left) > 0:
			w.t.Errorf("%v was given out while %d processes lived, among them %v", lease.Addresses, len(left), left[0])
		case lease.Addresses[0].String() != onlyAddress:
			w.t.Errorf("the next address is %v", lease.Addresses)
		}
		done <- time.Duration(monotonic() - begun)
	}()
	gone = allGone(w.t, all, begun)
	return gone, <-done
}

func TestARuntimePassesSignalsOnAndExitsAsItsCommand(t *testing.T) {
	w := newWorld(t, "default=10.9.0.0/24")
	w.startBroker()
	const command = "trap 'exit 7' USR1; echo up; while :; do sleep 0.01; done"
	for sig, code := range map[syscall.Signal]int{syscall.SIGUSR1: 7, syscall.SIGTERM: 128 + 15, syscall.SIGINT: 128 + 2, syscall.SIGHUP: 128 + 1} {
		r := w.run("--", "sh", "-c", command)
		r.stdout.await(t, "up")
		r.cmd.Process.Signal(sig)
		if got := r.exit(t); got != code {
			t.Errorf("after %v broker-run exits %d, want %d\n%v", sig, got, code, r.stderr)
		}
	}
	if left := w.leases(); len(left) > 0 {
		t.Errorf("leases are left: %v", left)
	}
}
