package keeper_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker/keeper"
	"github.com/fairlead-dev/fairlead/internal/process"
)

// tells reports whether this kernel tells how a foreign process has ended.
func tells(t *testing.T) bool {
	t.Helper()
	k := start(t, shell(t, "exit 1"))
	wait(t, "the end of all", k.Gone())
	_, ok := k.Program().ExitStatus()
	return ok
}

// ended checks the outcome of an adopted program.
func ended(t *testing.T, k *keeper.Keeper, want string) {
	t.Helper()
	if !tells(t) {
		want = "unknown"
	}
	if got := outcome(t, k).String(); got != want {
		t.Errorf("it ended with %s, want %s", got, want)
	}
}

func TestProgramAndOutputGoOnWithoutTheBrokerAndAreAdopted(t *testing.T) {
	leavesNothing(t)
	file := filepath.Join(t.TempDir(), "go")
	c := shell(t, daemons(2)+"while [ ! -e "+file+" ]; do sleep 0.01; done; seq 50000; echo last >&2; exit 9")
	b := startBroker(t, c)
	running(t, c, 2)
	b.kill()
	k := adopt(t, b.record)
	if k.Program().Gone() || k.Program().PID() != b.record.Program.PID {
		t.Errorf("the program is %d, gone is %v; want %d, alive", k.Program().PID(), k.Program().Gone(), b.record.Program.PID)
	}
	if k.Record() != b.record {
		t.Errorf("the record is %+v, want %+v", k.Record(), b.record)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ended(t, k, "exit status 9")
	wait(t, "the end of all", k.Gone())
	if left := family(c); left != nil {
		t.Errorf("alive: %v", left)
	}
	if got, want := text(c.Log), "started\n"+count(50000)+"last\n"; got != want {
		t.Errorf("the log has %d bytes, want %d", len(got), len(want))
	}
}

func TestWhoAdoptsCanTerminateAndKill(t *testing.T) {
	for kind, group := range kinds {
		t.Run(kind, func(t *testing.T) {
			leavesNothing(t)
			for _, how := range []string{"terminate", "kill"} {
				c := shell(t, daemons(2)+"exec sleep 1000")
				c.Cgroup = group(t)
				b := startBroker(t, c)
				running(t, c, 3)
				b.kill()
				k := adopt(t, b.record)
				want := "signal: killed"
				if how == "kill" {
					k.Kill()
				} else if want = "signal: terminated"; k.Terminate() != nil {
					t.Error("it cannot be terminated")
				}
				ended(t, k, want)
				wait(t, "the end of all", k.Gone())
				if left := family(c); left != nil {
					t.Errorf("%s: alive: %v", how, left)
				}
			}
		})
	}
}

func TestARecordSurvivesBeingWrittenDown(t *testing.T) {
	leavesNothing(t)
	c := sleeper(t)
	k := start(t, c)
	text, err := json.Marshal(k.Record())
	if err != nil {
		t.Fatal(err)
	}
	var r keeper.Record
	if err := json.Unmarshal(text, &r); err != nil || r != k.Record() {
		t.Errorf("it is %+v, %v, want %+v", r, err, k.Record())
	}
	if inode, ok := k.Program().Inode(); ok && r.Inode != inode {
		t.Errorf("the inode is %d, want %d", r.Inode, inode)
	}
}

// gone is the ID of a process that is no more.
func gone(t *testing.T) process.ID {
	t.Helper()
	k := start(t, shell(t, "exit 0"))
	wait(t, "the end of all", k.Gone())
	return k.Record().Program
}

func TestWhatIsGoneIsNotAdopted(t *testing.T) {
	leavesNothing(t)
	k := start(t, sleeper(t))
	live, none := k.Record(), gone(t)
	otherBoot := live
	otherBoot.Keeper.Boot, otherBoot.Program.Boot = "another", "another"
	for name, r := range map[string]keeper.Record{"both gone": {Keeper: none, Program: none}, "another boot": otherBoot} {
		if k, err := keeper.Adopt(r); !errors.Is(err, process.ErrGone) {
			t.Errorf("%s: %v, %v, want ErrGone", name, k, err)
		}
	}
}

func TestAProgramThatIsGoneBeforeItsKeeperHasEndedAtOnce(t *testing.T) {
	leavesNothing(t)
	none := gone(t)
	for name, spoil := range map[string]func(*keeper.Record){
		"gone":          func(r *keeper.Record) { r.Program = none },
		"another inode": func(r *keeper.Record) { r.Inode++ },
	} {
		t.Run(name, func(t *testing.T) {
			first := start(t, sleeper(t))
			r := first.Record()
			if name == "another inode" && r.Inode == 0 {
				t.Skip("the kernel has no inodes of pidfds (Linux 6.9)")
			}
			spoil(&r)
			k := adopt(t, r)
			select {
			case <-k.Ended():
			default:
				t.Error("it has not ended")
			}
			if k.Outcome().Known || k.Program() != nil {
				t.Errorf("the outcome is %v, the program is %v", k.Outcome(), k.Program())
			}
			if err := k.Terminate(); !errors.Is(err, process.ErrGone) {
				t.Errorf("Terminate says %v", err)
			}
			select {
			case <-k.Gone():
				t.Error("all is gone, although its keeper lives")
			default:
			}
			k.Kill()
			wait(t, "the end of all", k.Gone())
		})
	}
}

func TestAProgramWithoutAKeeperIsKilledByHand(t *testing.T) {
	for kind, group := range kinds {
		t.Run(kind, func(t *testing.T) {
			leavesNothing(t)
			none := gone(t)
			c := sleeper(t)
			c.Cgroup = group(t)
			first := start(t, c)
			r := first.Record()
			r.Keeper = none
			k := adopt(t, r)
			k.Kill()
			ended(t, k, "signal: killed")
			wait(t, "the end of all", k.Gone())
		})
	}
}

func TestWhatADeadKeeperLeftInItsCgroupGoesWithTheNextAdoption(t *testing.T) {
	leavesNothing(t)
	c := shell(t, daemons(3)+"sleep 1000")
	c.Cgroup = ownCgroup(t)
	b := startBroker(t, c)
	running(t, c, 4)
	b.kill()
	program, err := process.OpenID(b.record.Program)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if err := unix.Kill(b.record.Keeper.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the keeper and the program are reaped", func() bool {
		_, errKeeper := process.Identify(b.record.Keeper.PID)
		_, errProgram := process.Identify(b.record.Program.PID)
		return errors.Is(errKeeper, process.ErrGone) && errors.Is(errProgram, process.ErrGone)
	})
	if left := family(c); left == nil {
		t.Error("the daemons are gone already")
	}
	if _, err := keeper.Adopt(b.record); !errors.Is(err, process.ErrGone) {
		t.Errorf("it says %v, want ErrGone", err)
	}
	if left := family(c); left != nil {
		t.Errorf("alive: %v", left)
	}
}

func TestCloseLetsGo(t *testing.T) {
	leavesNothing(t)
	first, err := keeper.Start(t.Context(), sleeper(t))
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	first.Close()
	k := adopt(t, first.Record())
	if k.Program().Gone() {
		t.Error("the program is gone")
	}
	again, err := keeper.Adopt(first.Record())
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	select {
	case <-first.Ended():
		t.Error("it has ended")
	case <-again.Gone():
		t.Error("all is gone")
	default:
	}
	k.Kill()
	wait(t, "the end of all", k.Gone())
	if err := first.Terminate(); err == nil {
		t.Error("a closed Keeper terminates")
	}
}
