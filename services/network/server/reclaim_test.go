package server_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/services/runner"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestALeaseIsReclaimedByWhoProvesToHaveHeldIt(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24,fd00:9::/64")})
	helper := run(t, "holder", s.path)
	first := open(t, s.path)
	l := allocate(t, first, network.Request{Hostname: "web", Aliases: []string{"www"}, Witness: helper.pidfd()})
	claim := l.Claim()
	if len(claim.Secret) != 32 || claim.Lease != l.ID {
		t.Fatalf("the claim is %q and %q", claim.Lease, claim.Secret)
	}
	c := open(t, s.path)
	if _, err := reclaim(t, c, claim); !errors.Is(err, wire.Conflict) {
		t.Errorf("while its session is open: %v", err)
	}
	first.Close()
	wrong := claim
	wrong.Secret = "0123456789abcdef0123456789abcdef"
	if _, err := reclaim(t, c, wrong); !errors.Is(err, wire.NotPermitted) {
		t.Errorf("with a wrong secret: %v", err)
	}
	for range 2 { // a call that is repeated because its reply did not come
		again, err := reclaim(t, c, claim)
		if err != nil {
			t.Fatal(err)
		}
		if again.ID != l.ID || again.Hostname != "web" || again.MAC != l.MAC || !slices.Equal(again.Addresses, l.Addresses) ||
			!slices.Equal(again.Aliases, l.Aliases) || again.Claim() != claim {
			t.Errorf("it is %+v, was %+v", again, l)
		}
	}
	leases := list(t, c)
	if len(leases) != 1 || leases[0].State != network.StateHeld || len(leases[0].Witnesses) != 1 || leases[0].Witnesses[0].PID != helper.pid() || leases[0].Secret != "" {
		t.Errorf("listed is %+v", leases)
	}
	helper.kill()
	c.Close()
	last := open(t, s.path)
	if _, err := reclaim(t, last, claim); !errors.Is(err, wire.NotFound) {
		t.Errorf("when it is over: %v", err)
	}
}

func reclaim(t *testing.T, s *client.Session, claim network.Claim) (*network.Lease, error) {
	t.Helper()
	return network.Allocate(within(t, patience), s, network.Request{Reclaim: claim})
}

func TestAReclaimAsksForNothingElse(t *testing.T) {
	claim := network.AllocateRequest{Reclaim: "46f143cea281c473", Secret: "0123456789abcdef0123456789abcdef"}
	if err := claim.Validate(); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*network.AllocateRequest){
		"a network":   func(r *network.AllocateRequest) { r.Network = "lab" },
		"a hostname":  func(r *network.AllocateRequest) { r.Hostname = "web" },
		"an alias":    func(r *network.AllocateRequest) { r.Aliases = []string{"web"} },
		"an address":  func(r *network.AllocateRequest) { r.Addresses = []string{"10.9.0.7"} },
		"a MAC":       func(r *network.AllocateRequest) { r.MAC = "02:00:00:00:00:01" },
		"a token":     func(r *network.AllocateRequest) { r.Token = "t" },
		"no lease":    func(r *network.AllocateRequest) { r.Reclaim = "" },
		"no secret":   func(r *network.AllocateRequest) { r.Secret = "" },
		"a long one":  func(r *network.AllocateRequest) { r.Secret += "0" },
		"a bad lease": func(r *network.AllocateRequest) { r.Reclaim = "x" },
	} {
		r := claim
		change(&r)
		if err := r.Validate(); !errors.Is(err, wire.Malformed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A crashing service is one in a process of its own, that a test kills and starts again.
type crashing struct {
	t    *testing.T
	dir  string
	text string
	now  *child
}

func newCrashing(t *testing.T, text string) *crashing {
	t.Helper()
	c := &crashing{t: t, dir: folder(t), text: text}
	c.start()
	return c
}

func (c *crashing) start() { c.now = run(c.t, "service", c.path(), c.dir+"/state", c.text) }

func (c *crashing) path() string { return c.dir + "/s" }

// crash kills the service and starts another.
func (c *crashing) crash() {
	c.t.Helper()
	c.now.kill()
	os.Remove(c.path())
	c.start()
}

func TestAnOrphanIsReclaimedAndThenLastsAsLongAsItsNewSession(t *testing.T) {
	leavesNothing(t)
	s := newCrashing(t, "default=10.9.0.0/24")
	lone := allocate(t, open(t, s.path()), network.Request{Hostname: "lone"}) // its holder is this process
	for range 3 {
		s.crash()
		c := open(t, s.path())
		if leases := list(t, c); len(leases) != 1 || leases[0].State != network.StateOrphaned {
			t.Fatalf("after the crash there is %+v", leases)
		}
		again, err := reclaim(t, c, lone.Claim())
		if err != nil || !slices.Equal(again.Addresses, lone.Addresses) {
			t.Fatalf("%+v, %v", again, err)
		}
		if leases := list(t, c); leases[0].State != network.StateHeld || len(leases[0].Witnesses) > 0 {
			t.Fatalf("after the reclaim there is %+v", leases)
		}
	}
	c := open(t, s.path())
	again, err := reclaim(t, c, lone.Claim())
	if !errors.Is(err, wire.Conflict) {
		t.Fatalf("twice: %+v, %v", again, err)
	}
}

func TestAReclaimedOrphanGoesWithItsSessionWhereItsFormerHolderIsTheSameProcess(t *testing.T) {
	leavesNothing(t)
	s := newCrashing(t, "default=10.9.0.0/24")
	l := allocate(t, open(t, s.path()), network.Request{})
	s.crash()
	c := open(t, s.path())
	if _, err := reclaim(t, c, l.Claim()); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if leases := list(t, open(t, s.path())); len(leases) > 0 {
		t.Errorf("its session is over, and there is %+v", leases)
	}
}

func TestAFormerHolderKeepsWhatAnotherProcessReclaims(t *testing.T) {
	leavesNothing(t)
	s := newCrashing(t, "default=10.9.0.0/24")
	old := run(t, "holder", s.path())
	a := old.allocate(order{Hostname: "web"})
	s.crash()
	c := open(t, s.path())
	if _, err := reclaim(t, c, network.Claim{Lease: a.Lease, Secret: a.Secret}); err != nil {
		t.Fatal(err)
	}
	s.crash() // the record knows both
	c = open(t, s.path())
	if leases := list(t, c); len(leases) != 1 || len(leases[0].Witnesses) != 2 {
		t.Errorf("kept by this process and the former holder is %+v", leases)
	}
	l, err := reclaim(t, c, network.Claim{Lease: a.Lease, Secret: a.Secret})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if leases := list(t, c); len(leases) != 1 || leases[0].State != network.StateDying || leases[0].Witnesses[0].PID != old.pid() {
		t.Errorf("the former holder lives, and there is %+v", leases)
	}
	old.kill()
	if leases := list(t, c); len(leases) > 0 {
		t.Errorf("all are gone, and there is %+v", leases)
	}
}

func TestNobodyReclaimsAnotherUsersLease(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start processes of other users")
	}
	leavesNothing(t)
	s := newCrashing(t, "default=10.9.0.0/24")
	for _, path := range []string{s.dir, s.path()} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	other := runIn(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}, "holder", s.path())
	a := other.allocate(order{})
	s.crash()
	if _, err := reclaim(t, open(t, s.path()), network.Claim{Lease: a.Lease, Secret: a.Secret}); !errors.Is(err, wire.NotPermitted) {
		t.Errorf("root: %v", err)
	}
}

func TestASessionLeavesItsLeaseToAWitness(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	helper, last := run(t, "holder", s.path), run(t, "holder", s.path)
	hook := open(t, s.path) // as a hook is: it allocates for what others run, and goes
	l := allocate(t, hook, network.Request{Hostname: "web", Witness: helper.pidfd()})
	allocate(t, hook, network.Request{Hostname: "kept", Witness: last.pidfd()})
	hook.Close()
	later := open(t, s.path)
	leases := list(t, later)
	if len(leases) != 2 || leases[0].State != network.StateDying || len(leases[0].Witnesses) != 1 || leases[0].Witnesses[0].PID != helper.pid() {
		t.Fatalf("listed is %+v", leases)
	}
	if err := network.Release(within(t, patience), later, l.ID); err != nil {
		t.Fatal(err)
	}
	if err := network.Release(within(t, patience), later, l.ID); !errors.Is(err, wire.NotFound) {
		t.Errorf("twice: %v", err)
	}
	allocate(t, later, network.Request{Hostname: "web"}) // although the witness lives
	last.kill()
	until(t, "the other lease is over with its witness", func() bool {
		_, err := network.Lookup(within(t, patience), later, "", "kept")
		return errors.Is(err, wire.NotFound)
	})
}

func TestNobodyReleasesALeaseThatAnotherSessionHolds(t *testing.T) {
	leavesNothing(t)
	s := start(t, server.Config{Networks: networks(t, "default=10.9.0.0/24")})
	l := allocate(t, open(t, s.path), network.Request{})
	if err := network.Release(within(t, patience), open(t, s.path), l.ID); !errors.Is(err, wire.NotPermitted) {
		t.Errorf("it says %v", err)
	}
}

func TestAContainerGoesOnWithALeaseThatWasReclaimedAndEndsWithOneThatIsNot(t *testing.T) {
	leavesNothing(t)
	s := newCrashing(t, "default=10.9.0.0/24")
	refuses := errors.New("not this time")
	reclaimed, refuse := make(chan *network.Lease, 1), make(chan struct{})
	container, err := runner.Prepare(exec.Command("sleep", "1000"), runner.Options{Grace: patience,
		Reclaim: func(ctx context.Context, lost *network.Lease, witness *os.File) (*network.Lease, error) {
			select {
			case <-refuse:
				return nil, refuses
			default:
			}
			for { // as network.Reclaim does, through a broker
				session, err := dial(s.path())
				if err == nil {
					t.Cleanup(func() { session.Close(); session.Wait() })
					var l *network.Lease
					if l, err = network.Allocate(ctx, session, network.Request{Reclaim: lost.Claim(), Witness: witness}); err == nil {
						reclaimed <- l
						return l, nil
					}
				}
				select {
				case <-time.After(time.Millisecond):
				case <-ctx.Done():
					return nil, err
				}
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	l := allocate(t, open(t, s.path()), network.Request{Hostname: "web", Witness: container.Witness()})
	ended := make(chan error, 1)
	go func() { ended <- container.Run(t.Context(), l) }()
	for range 3 {
		s.crash()
		if again := <-reclaimed; again.ID != l.ID || !slices.Equal(again.Addresses, l.Addresses) {
			t.Errorf("it goes on with %+v, and had %+v", again, l)
		}
		leases := list(t, open(t, s.path()))
		if len(leases) != 1 || leases[0].State != network.StateHeld || len(leases[0].Witnesses) != 1 || leases[0].Witnesses[0].PID != container.PID() {
			t.Fatalf("there is %+v", leases)
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("it has ended: %v", err)
	default:
	}
	close(refuse)
	s.now.kill()
	if lost, ok := errors.AsType[*runner.LostError](<-ended); !ok || !errors.Is(lost, refuses) || !errors.Is(lost, wire.Interrupted) {
		t.Errorf("it ends with %v", lost)
	}
}

func TestAReclaimThatCannotBeRecordedChangesNothing(t *testing.T) {
	leavesNothing(t)
	s := newCrashing(t, "default=10.9.0.0/24")
	helper, second := run(t, "holder", s.path()), run(t, "holder", s.path())
	first := open(t, s.path())
	l := allocate(t, first, network.Request{Witness: helper.pidfd()})
	first.Close()
	c := open(t, s.path())
	until(t, "it is its witness's", func() bool { return list(t, c)[0].State == network.StateDying })
	again := network.Request{Reclaim: l.Claim(), Witness: second.pidfd()}
	limitFiles(t, s.now, 1)
	fillRecord(t, c)
	if _, err := network.Allocate(within(t, patience), c, again); !errors.Is(err, wire.Unavailable) {
		t.Errorf("it says %v", err)
	}
	if leases := list(t, c); len(leases) != 1 || leases[0].State != network.StateDying {
		t.Errorf("there is %+v", leases)
	}
	limitFiles(t, s.now, unix.RLIM_INFINITY)
	if _, err := network.Allocate(within(t, patience), c, again); err != nil {
		t.Fatal(err)
	}
	helper.kill()
	c.Close()
	c = open(t, s.path())
	if leases := list(t, c); len(leases) != 1 || len(leases[0].Witnesses) != 1 || leases[0].Witnesses[0].PID != second.pid() {
		t.Errorf("the second witness lives, and there is %+v", leases)
	}
}
