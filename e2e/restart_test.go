package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
	"github.com/fairlead-dev/fairlead/services/network"
)

func TestTheDeathOfTheBrokerIsNoEventForItsSessions(t *testing.T) {
	w := newWorld(t, "default=10.9.0.0/24")
	w.startBroker()
	var holders []holder
	for range 5 {
		holders = append(holders, w.holder(20, "default", ""))
	}
	held := map[string]bool{}
	for _, h := range holders {
		h.opened(t)
		for _, l := range h.leased(t) {
			held[l.Session] = true
		}
		h.say(t, "call")
	}
	before := w.service()
	counted := w.census()
	w.broker.kill()
	opened, stopAsking := w.ask(len(held))
	begun := time.Now()
	w.startBroker()
	w.shows(held)
	took := time.Since(begun)
	eventually(t, "sessions are opened", func() bool { return opened.Load() >= 20 })
	stopAsking()

	t.Logf("a new broker showed all %d sessions %v after its start", len(held), took)
	limit := 2 * time.Second
	if stage.RaceEnabled {
		limit = 5 * time.Second
	}
	if took > limit {
		t.Errorf("that is more than %v", limit)
	}
	if most := counted(); len(most) != 1 {
		t.Errorf("network services lived at once: %v", most)
	}
	if after := w.service(); after.PID != before.PID || after.Instance != before.Instance {
		t.Errorf("the network service is %+v and was %+v", after, before)
	}
	checkUndisturbed(t, holders)
}

// checkUndisturbed checks that all calls of the holders were answered, and that none of their sessions has ended.
func checkUndisturbed(t *testing.T, holders []holder) {
	t.Helper()
	for _, h := range holders {
		if calls, failures, why := h.calling(t); failures > 0 || calls < int64(h.sessions) {
			t.Errorf("%d of %d calls failed: %s", failures, calls, why)
		}
		if lines := h.stdout.String(); strings.Contains(lines, `"End":{`) {
			t.Errorf("a session has ended: %s", lines)
		}
	}
}

// shows waits until the broker lists all sessions that are held.
func (w *world) shows(held map[string]bool) {
	w.t.Helper()
	table := w.dial(broker.Endpoint)
	eventually(w.t, "the table shows all sessions", func() bool {
		list, err := brokertest.Sessions(w.t.Context(), table, broker.SessionsRequest{Endpoint: network.Endpoint})
		if err != nil {
			w.t.Fatal(err)
		}
		shown := 0
		for _, s := range list {
			if held[s.ID] && s.State == broker.SessionOpen {
				shown++
			}
		}
		return shown == len(held)
	})
}

// ask opens sessions and asks brokerctl for the leases, which are so many, again and again until stop is called.
func (w *world) ask(leases int) (opened *atomic.Int64, stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var asking sync.WaitGroup
	opened = new(atomic.Int64)
	asking.Go(func() {
		for ctx.Err() == nil {
			s, err := client.Dial(ctx, network.Endpoint, client.Options{Socket: w.socket})
			if err != nil {
				if ctx.Err() == nil {
					w.t.Errorf("open: %v", err)
				}
				return
			}
			opened.Add(1)
			if list, err := network.List(ctx, s, network.ListRequest{}); ctx.Err() == nil && (err != nil || len(list) != leases) {
				w.t.Errorf("%d leases, want %d: %v", len(list), leases, err)
			}
			s.Close()
		}
	})
	asking.Go(func() {
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, stage.Program("brokerctl"), "lease", "list")
			cmd.Env = w.environ()
			out, err := cmd.Output()
			exit, failed := errors.AsType[*exec.ExitError](err)
			switch lines := strings.Count(string(out), "\n"); {
			case ctx.Err() != nil, failed && exit.ExitCode() == 5: // no broker yet
			case err != nil:
				w.t.Errorf("brokerctl lease list: %v: %s", err, exit.Stderr)
			case lines != leases+1:
				w.t.Errorf("brokerctl lease list has %d lines, want a header and %d", lines, leases)
			}
		}
	})
	return opened, func() {
		cancel()
		asking.Wait()
	}
}

// census counts the network services that live, until the returned function is called. That returns the most that were seen at once.
func (w *world) census() (stop func() []stage.Process) {
	done, most := make(chan struct{}), make(chan []stage.Process, 1)
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		var seen []stage.Process
		for {
			if all := w.instances(); len(all) > len(seen) {
				seen = all
			}
			select {
			case <-done:
				most <- seen
				return
			case <-w.t.Context().Done(): // the test has failed
				return
			case <-tick.C:
			}
		}
	}()
	return func() []stage.Process {
		close(done)
		return <-most
	}
}

func TestABrokerWithOtherNetworksSaysHowToApplyThem(t *testing.T) {
	w := newWorld(t, "default=10.9.0.0/24")
	w.startBroker()
	h := w.holder(1, "default", "")
	h.opened(t)
	h.leased(t)
	w.broker.kill()
	w.networks = []string{"default=10.7.0.0/24"}
	b := w.startBroker()
	line := b.stderr.await(t, "runs otherwise")
	const advice = "service restart fairlead.network"
	for _, part := range []string{advice, "default=10.9.0.0/24", "default=10.7.0.0/24"} {
		if !strings.Contains(line, part) {
			t.Errorf("the log says %q: %q is not in it", line, part)
		}
	}
	if all := w.leases(); len(all) != 1 || all[0].Addresses[0] != "10.9.0.2/24" {
		t.Errorf("the leases are %v", all)
	}

	if _, errs, code := w.ctl(strings.Fields(advice)...); code != 0 {
		t.Errorf("the advice exits %d: %s", code, errs)
	}
	h.told(t)
	h.kill()
	young := w.holder(1, "default", "")
	young.opened(t)
	if l := young.leased(t)[0]; l.Address != "10.7.0.2/24" {
		t.Errorf("after %q the address is %s", advice, l.Address)
	}
}

func TestTheDeathOfTheBrokerAtAnyMomentOfAStartNeverLeavesTwoInstances(t *testing.T) {
	runs, outlived := count(40, 300), 0
	busy := newLoad(t)
	for i := range runs {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			w := newWorld(t, one)
			w.startBroker()
			h := w.holder(1, "default", "")
			if i%2 == 0 {
				w.awaitStart()
			} else {
				w.broker.stderr.await(t, "instance started")
			}
			after := 5 * time.Millisecond * time.Duration(i) / time.Duration(runs)
			spin(after)
			w.broker.kill()
			busy.signal(syscall.SIGCONT)
			defer busy.signal(syscall.SIGSTOP)
			outlived += len(w.instances())
			counted := w.census()
			w.startBroker()
			h.opened(t)
			h.leased(t)
			if most := counted(); len(most) > 1 || len(w.instances()) != 1 { // one that is young may not have been seen
				t.Errorf("the broker was killed %v after a start began: now %v live, at most were seen %v", after, w.instances(), most)
			}
		})
	}
	t.Logf("%d of %d network services outlived their broker's death", outlived, runs)
}

// awaitStart returns at once when the broker begins to start its network service: then its lock is there.
func (w *world) awaitStart() {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		if _, err := os.Stat(broker.LockPath(w.socket, network.Endpoint)); err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the broker starts nothing:\n%v", w.broker.stderr)
		}
	}
}

// spin returns after d, and not a time slice later.
func spin(d time.Duration) {
	for begun := time.Now(); time.Since(begun) < d; {
	}
}

// A load is processes that keep the machine busy while they are not stopped.
type load []*process

func newLoad(t *testing.T) load {
	t.Helper()
	w := newWorld(t)
	var l load
	for range 2 * runtime.NumCPU() {
		l = append(l, w.start(exec.Command("sh", "-c", "while :; do :; done")))
	}
	l.signal(syscall.SIGSTOP)
	return l
}

func (l load) signal(sig syscall.Signal) {
	for _, p := range l {
		p.cmd.Process.Signal(sig)
	}
}
