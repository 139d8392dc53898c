package e2e_test

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestContainersThatReclaimOutliveTheNetworkService(t *testing.T) {
	runtimes, kills := count(10, 50), count(5, 20)
	w := newWorld(t, "default=10.9.0.0/24")
	w.startBroker()
	var runs []*process
	for i := range runtimes {
		runs = append(runs, w.run("--on-loss", "reclaim", "--grace", "60s", "--hostname", fmt.Sprintf("c%d", i), "--", "sh", "-c", "echo up $FAIRLEAD_ADDRESS; exec sleep 1000"))
	}
	for _, r := range runs {
		r.stdout.next(t)
	}
	held := addresses(w)
	if len(held) != runtimes {
		t.Fatalf("%d leases are held, want %d", len(held), runtimes)
	}
	var sleeping []stage.Process
	eventually(t, "all containers run", func() bool {
		sleeping = slices.DeleteFunc(stage.Named(w.dir), func(s stage.Process) bool { return s.Args[0] != "sleep" })
		return len(sleeping) == runtimes
	})
	containers := watch(t, sleeping)
	var most time.Duration
	for range kills {
		before := w.killInstance()
		w.startAtOnce()
		next := w.dial(network.Endpoint) // somebody who wants an address first
		l, err := network.Allocate(within(t, patience), next, network.Request{})
		if err != nil {
			t.Fatal(err)
		}
		for _, had := range held {
			if address, _, _ := strings.Cut(had, " "); address == l.Addresses[0].String() {
				t.Fatalf("%v is given out, and a container has it", address)
			}
		}
		next.Close()
		eventually(t, "all leases are held again", func() bool { return maps.Equal(addresses(w), held) })
		most = max(most, time.Duration(monotonic()-before))
		if living := len(alive(containers)); living != runtimes {
			t.Fatalf("%d containers live, want %d", living, runtimes)
		}
	}
	t.Logf("%d runtimes, %d kills: all leases were held again at most %v after one", runtimes, kills, most)
	for _, r := range runs {
		r.cmd.Process.Signal(unix.SIGTERM)
	}
	for i, r := range runs {
		if code := r.exit(t); code != 128+int(unix.SIGTERM) {
			t.Errorf("broker-run %d exits %d\n%v", i, code, r.stderr)
		}
	}
	if held := addresses(w); len(held) > 0 {
		t.Errorf("all are gone, and held is %v", held)
	}
}

// startAtOnce has the broker start the network service although it has failed so soon.
func (w *world) startAtOnce() {
	w.t.Helper()
	s := w.dial(broker.Endpoint)
	defer s.Close()
	asks := w.start(exec.Command(stage.Program("brokerctl"), "lease", "list")) // else it is not needed
	defer asks.exit(w.t)
	eventually(w.t, "the network service is started", func() bool { // the broker may not know yet that it was killed
		if err := s.Call(within(w.t, patience), broker.MethodReset, broker.ServiceRequest{Name: network.Endpoint}, nil); err != nil {
			w.t.Fatal(err)
		}
		return len(w.instances()) > 0
	})
}

// addresses returns those of the leases that are held, by their ids.
func addresses(w *world) map[string]string {
	w.t.Helper()
	held := map[string]string{}
	for _, l := range w.leases() {
		if l.State == network.StateHeld {
			held[l.ID] = l.Addresses[0] + " " + l.MAC + " " + l.Hostname
		}
	}
	return held
}

// The broker waits for one throttle interval after a first quick death, and for two after the next.
func TestByDefaultTheGraceOutlastsANetworkServiceThatFailsTwiceAsSoonAsItHasStarted(t *testing.T) {
	w := newWorld(t, "default=10.9.0.0/24")
	w.builtIn = true
	w.startBroker()
	s := w.dial(broker.Endpoint)
	defer s.Close()
	var d broker.ServiceDetails
	if err := s.Call(within(t, patience), broker.MethodService, broker.ServiceRequest{Name: network.Endpoint}, &d); err != nil {
		t.Fatal(err)
	}
	help, err := exec.Command(stage.Program("broker-run"), "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`--grace duration .*\(default (\w+)\)`).FindSubmatch(help)
	if m == nil {
		t.Fatalf("no default of --grace in %s", help)
	}
	if grace, err := time.ParseDuration(string(m[1])); err != nil || 3*d.Throttle >= grace {
		t.Errorf("the third start may be %v after the first, and the grace is %v, %v", 3*d.Throttle, grace, err)
	}
}

func TestASessionThatAnOperatorClosesIsNotReclaimed(t *testing.T) {
	w := newWorld(t, "default=10.9.0.0/24")
	w.startBroker()
	r := w.run("--on-loss", "reclaim", "--grace", "60s", "--", "sh", "-c", "echo up; exec sleep 1000")
	r.stdout.next(t)
	leases := w.leases()
	if len(leases) != 1 {
		t.Fatalf("%d leases are held, want 1", len(leases))
	}
	if code := w.start(exec.Command(stage.Program("brokerctl"), "session", "close", leases[0].Session, "--reason", "it is mine")).exit(t); code != 0 {
		t.Fatalf("brokerctl session close exits %d", code)
	}
	if code := r.exit(t); code != 69 || !strings.Contains(r.stderr.String(), "the lease on network default is over: it is mine (interrupted)") {
		t.Errorf("broker-run exits %d, want 69 and the reason\n%v", code, r.stderr)
	}
	eventually(t, "the lease is over", func() bool { return len(w.leases()) == 0 })
}

func TestARestartOfTheNetworkServiceEndsNoContainerThatReclaims(t *testing.T) {
	w := newWorld(t, "default=10.9.0.0/24")
	w.builtIn = true
	w.startBroker()
	const runtimes = 5
	var runs []*process
	for range runtimes {
		r := w.run("--on-loss", "reclaim", "--grace", "60s", "--", "sh", "-c", "echo up; exec sleep 1000")
		r.stdout.next(t)
		runs = append(runs, r)
	}
	held := addresses(w)
	if len(held) != runtimes {
		t.Fatalf("%d leases are held, want %d", len(held), runtimes)
	}
	for range 3 {
		old := w.instance()
		if code := w.start(exec.Command(stage.Program("brokerctl"), "service", "restart", network.Endpoint)).exit(t); code != 0 || !old.gone(patience) {
			t.Fatalf("brokerctl service restart exits %d", code)
		}
		eventually(t, "all leases are held again", func() bool { return maps.Equal(addresses(w), held) })
	}
	for _, r := range runs {
		r.cmd.Process.Signal(unix.SIGTERM)
		if code := r.exit(t); code != 128+int(unix.SIGTERM) {
			t.Errorf("broker-run exits %d\n%v", code, r.stderr)
		}
	}
}

func TestAContainerWhoseLeaseAnOperatorHasReleasedEndsAlthoughItReclaims(t *testing.T) {
	w := newWorld(t, "default=10.9.0.0/24")
	w.startBroker()
	r := w.run("--on-loss", "reclaim", "--grace", "60s", "--", "sh", "-c", "echo up; exec sleep 1000")
	r.stdout.next(t)
	lost := w.leases()[0].ID
	r.freeze(t) // so that it does not take the lease back before
	w.killInstance()
	w.startAtOnce()
	operator := w.dial(network.Endpoint)
	defer operator.Close()
	if err := network.Release(within(t, patience), operator, lost); err != nil {
		t.Fatal(err)
	}
	r.cmd.Process.Signal(unix.SIGCONT)
	if code := r.exit(t); code != 69 {
		t.Errorf("it exits %d, want 69\n%v", code, r.stderr)
	}
}

func TestAnAddressIsNotGivenOutBeforeTheLastProcessOfAKilledRuntimeHasDied(t *testing.T) {
	const slow = 2 * time.Second
	w := newWorld(t, "default=10.9.0.0/30") // one address
	w.startBroker()
	r := w.run("--", "sh", "-c", "echo up; exec sleep 1000")
	r.stdout.next(t)
	var last stage.Process
	eventually(t, "its container runs", func() bool {
		sleeping := slices.DeleteFunc(stage.Named(w.dir), func(s stage.Process) bool { return s.Args[0] != "sleep" })
		if len(sleeping) == 1 {
			last = sleeping[0]
		}
		return len(sleeping) == 1
	})
	// What is traced is not gone before its tracer has seen it end, as what dumps its core, or has a write to finish, is not.
	attached, died := make(chan error, 1), make(chan int64, 1)
	killed := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		const seize = 0x4206 // PTRACE_SEIZE of linux/ptrace.h
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, seize, uintptr(last.PID), 0, 0, 0, 0)
		if errno != 0 {
			attached <- errno
			return
		}
		attached <- nil
		<-killed
		<-time.After(slow)
		at := monotonic()
		var err error = unix.EINTR
		for err == unix.EINTR {
			_, err = unix.Wait4(last.PID, nil, unix.WALL, nil)
		}
		died <- at
	}()
	if err := <-attached; err != nil {
		t.Fatalf("trace %v: %v", last, err)
	}
	r.kill()
	close(killed)
	s := w.dial(network.Endpoint)
	defer s.Close()
	if _, err := network.Allocate(within(t, slow/4), s, network.Request{}); !errors.Is(err, wire.Unavailable) {
		t.Errorf("while it dies: %v", err)
	}
	if leases := w.leases(); len(leases) != 1 || leases[0].State != network.StateDying {
		t.Errorf("while it dies there is %+v", leases)
	}
	l, err := network.Allocate(within(t, patience), s, network.Request{})
	given := monotonic()
	if err != nil {
		t.Fatal(err)
	}
	if at := <-died; given < at {
		t.Errorf("%v was given out %v before the last process had died", l.Addresses[0], time.Duration(at-given))
	} else {
		t.Logf("given out %v after the last process had died", time.Duration(given-at))
	}
}
