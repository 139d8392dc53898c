package server_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/services/runner"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

func TestAReleasedLeaseWaitsForItsWitness(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	c := open(t, s.path)
	l := allocate(t, c, network.Request{Hostname: "web"})
	helper := run(t, "holder", s.path)
	for range 2 {
		if err := l.AddWitness(within(t, patience), helper.pidfd()); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Release(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if leases := list(t, c); len(leases) != 1 || leases[0].State != network.StateDying {
		t.Fatalf("listed is %+v", leases)
	}
	if _, err := network.Allocate(within(t, time.Second), c, network.Request{Hostname: "web"}); !errors.Is(err, wire.Unavailable) {
		t.Errorf("its hostname: %v", err)
	}
	helper.kill()
	allocate(t, c, network.Request{Hostname: "web"})
}

func TestALeaseLastsUntilItsSessionAndAllItsWitnessesAreGone(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	watcher, c := open(t, s.path), open(t, s.path)
	helpers := []*child{run(t, "holder", s.path), run(t, "holder", s.path), run(t, "holder", s.path)}
	given := helpers[0].pidfd()
	l := allocate(t, c, network.Request{Witness: given})
	given.Close() // the service has its own
	for _, helper := range helpers[1:] {
		if err := l.AddWitness(within(t, patience), helper.pidfd()); err != nil {
			t.Fatal(err)
		}
	}
	shows := func(want string) {
		t.Helper()
		if leases := list(t, watcher); len(leases) != 1 || leases[0].ID != l.ID || leases[0].State != want {
			t.Errorf("listed is %+v, want it %s", leases, want)
		}
	}
	helpers[1].kill()
	shows(network.StateHeld)
	c.Close()
	shows(network.StateDying)
	helpers[0].kill()
	shows(network.StateDying)
	helpers[2].kill()
	if leases := list(t, watcher); len(leases) > 0 {
		t.Errorf("listed is %+v when all are gone", leases)
	}
}

func TestALeaseHasSixteenWitnesses(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	c := open(t, s.path)
	l := allocate(t, c, network.Request{})
	helper := run(t, "holder", s.path)
	var witnesses []*os.File
	for range network.MaxWitnesses + 1 {
		witnesses = append(witnesses, pidfd(t, helper.linger("linger").PID()))
	}
	before := countDescriptors(t)
	for i, w := range witnesses {
		if err := l.AddWitness(within(t, patience), w); i < network.MaxWitnesses && err != nil || i == network.MaxWitnesses && !errors.Is(err, wire.OverQuota) {
			t.Errorf("witness %d: %v", i+1, err)
		}
	}
	if err := l.AddWitness(within(t, patience), witnesses[0]); err != nil {
		t.Errorf("one that is a witness already: %v", err)
	}
	until(t, "there is a descriptor for each witness", func() bool { return countDescriptors(t)-before == network.MaxWitnesses }) // a client's copies may outlive its call
	if err := c.Call(within(t, patience), network.MethodRelease, network.LeaseRef{Lease: l.ID}, nil); err != nil {
		t.Fatal(err)
	}
	helper.end()
	until(t, "the lease is over", func() bool { return len(list(t, c)) == 0 })
	until(t, "their descriptors are closed", func() bool { return countDescriptors(t) <= before })
}

func TestAWitnessNeedsNoNumberInItsClientsNamespace(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
	}
	inner := runIn(t, attr, "holder", s.path) // process 1 there: its end ends all in it
	pid := inner.order(order{Do: "linger"}).PID
	if pid >= inner.pid() {
		t.Fatalf("it knows its child by the number %d, and is %d here", pid, inner.pid())
	}
	inner.allocate(order{Witness: pid})
	c := open(t, s.path)
	if leases := list(t, c); len(leases) != 1 || leases[0].Holder.PID != inner.pid() {
		t.Errorf("listed is %+v", leases)
	}
	inner.kill()
	if leases := list(t, c); len(leases) > 0 {
		t.Errorf("listed is %+v when all are gone", leases)
	}
}

func TestWitnessesLeaveNoDescriptorInTheService(t *testing.T) {
	leavesNothing(t)
	dir := folder(t)
	service := run(t, "service", dir+"/s", dir+"/state", "default=10.9.0.0/16")
	c := open(t, dir+"/s")
	kept := allocate(t, c, network.Request{})
	helper := run(t, "holder", dir+"/s")
	dead := helper.linger("linger")
	gone := pidfd(t, dead.PID())
	dead.Signal(syscall.SIGKILL)
	until(t, "it has exited", dead.Gone)
	helper.order(order{Do: "list"}) // the service has its session, too
	before := countDescriptorsOf(t, service.pid())
	for range 20 {
		witness := helper.linger("linger")
		for range 50 {
			useWitness(t, c, kept, pidfd(t, witness.PID()), gone)
		}
		witness.Signal(syscall.SIGKILL)
	}
	until(t, "all descriptors of the service are closed", func() bool { return countDescriptorsOf(t, service.pid()) <= before })
	if leases := list(t, c); len(leases) != 1 {
		t.Errorf("there is %+v, want the first", leases)
	}
}

// useWitness sends a witness in all ways in which it comes to nothing, or to a lease that is over when it is gone.
func useWitness(t *testing.T, c *session.Session, other *network.Lease, witness, gone *os.File) {
	t.Helper()
	defer witness.Close()
	ctx := within(t, patience)
	l := allocate(t, c, network.Request{Witness: witness})
	twice := l.AddWitness(ctx, witness)
	dead := other.AddWitness(ctx, gone)
	unnamed := c.Send(ctx, network.MethodWithdraw, map[string]any{"k": "x", "w": witness})
	_, nowhere := network.Allocate(ctx, c, network.Request{Network: "nowhere", Witness: witness})
	released := l.Release(ctx)
	over := c.Call(ctx, network.MethodWitness, network.WitnessRequest{Lease: l.ID, Witness: witness}, nil)
	for _, result := range []struct {
		what      string
		err, want error
	}{
		{"twice", twice, nil}, {"one that is gone", dead, wire.NotFound}, {"where none is expected", unnamed, nil},
		{"no such network", nowhere, wire.NotFound}, {"release", released, nil}, {"after the release", over, wire.NotFound},
	} {
		if !errors.Is(result.err, result.want) {
			t.Fatalf("%s: %v, want %v", result.what, result.err, result.want)
		}
	}
}

func TestRunMakesItsContainerTheWitnessBeforeItRuns(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	ran := filepath.Join(folder(t), "ran")
	lost := runner.Run(t.Context(), exec.Command("touch", ran), allocate(t, withoutLane(t, s), network.Request{}))
	if refusal, ok := errors.AsType[*runner.WitnessError](lost); !ok || !errors.Is(refusal, wire.Unsupported) {
		t.Errorf("without a lane it says %v, want a *WitnessError", lost)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("without a witness it ran")
	}

	c := open(t, s.path)
	l := allocate(t, c, network.Request{Hostname: "web"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx, exec.Command("sh", "-c", "touch "+ran+"; exec sleep 1000"), l) }()
	until(t, "the command runs", func() bool { _, err := os.Stat(ran); return err == nil })
	if err := c.Call(within(t, patience), network.MethodRelease, network.LeaseRef{Lease: l.ID}, nil); err != nil { // unknown to Run
		t.Fatal(err)
	}
	if found, err := network.Lookup(within(t, patience), c, "", "web"); err != nil || found.State != network.StateDying {
		t.Errorf("after the release it is %q, %v, want it kept by the container", found.State, err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it returns %v", err)
	}
	if _, err := network.Lookup(within(t, patience), c, "", "web"); !errors.Is(err, wire.NotFound) {
		t.Errorf("when the container is gone: %v", err)
	}
}
