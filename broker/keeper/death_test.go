package keeper_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker/keeper"
)

// kinds are how a program's processes are held together.
var kinds = map[string]func(*testing.T) string{
	"with a cgroup":    ownCgroup,
	"without a cgroup": func(*testing.T) string { return "" },
}

func TestNothingOutlivesTheProgram(t *testing.T) {
	for kind, group := range kinds {
		t.Run(kind, func(t *testing.T) {
			leavesNothing(t)
			file := filepath.Join(t.TempDir(), "go")
			c := shell(t, daemons(10)+"while [ ! -e "+file+" ]; do sleep 0.01; done; exit 5")
			c.Cgroup = group(t)
			k := start(t, c)
			running(t, c, 10)
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if o := outcome(t, k); o.Code != 5 {
				t.Errorf("it ended with %v", o)
			}
			wait(t, "the end of all", k.Gone())
			if left := family(c); left != nil {
				t.Errorf("alive: %v", left)
			}
		})
	}
}

func TestKillReachesEverything(t *testing.T) {
	for kind, group := range kinds {
		t.Run(kind, func(t *testing.T) {
			leavesNothing(t)
			c := shell(t, daemons(10)+"trap '' TERM; while :; do sleep 1000; done")
			c.Cgroup = group(t)
			k := start(t, c)
			running(t, c, 10)
			k.Kill()
			if o := outcome(t, k); o.Signal != unix.SIGKILL {
				t.Errorf("it ended with %v", o)
			}
			wait(t, "the end of all", k.Gone())
			if left := family(c); left != nil {
				t.Errorf("alive: %v", left)
			}
			k.Kill() // nothing is left to kill
		})
	}
}

func TestWhoJoinsTheCgroupGoesWithIt(t *testing.T) {
	leavesNothing(t)
	c := sleeper(t)
	c.Cgroup = ownCgroup(t)
	k := start(t, c)
	stranger := exec.Command("/bin/sleep", "1000") // no descendant of the keeper's
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer stranger.Wait()
	defer stranger.Process.Kill()
	if err := os.WriteFile(filepath.Join(c.Cgroup, "cgroup.procs"), fmt.Append(nil, stranger.Process.Pid), 0); err != nil {
		t.Fatal(err)
	}
	if err := k.Terminate(); err != nil {
		t.Fatal(err)
	}
	wait(t, "the end of all", k.Gone())
}

func TestCgroupsThatTheProgramMakesAreRemoved(t *testing.T) {
	leavesNothing(t)
	group := ownCgroup(t)
	c := shell(t, "mkdir -p "+group+"/a/b && echo 0 > "+group+"/a/b/cgroup.procs && "+daemons(2)+"exit 6")
	c.Cgroup = group
	k := start(t, c)
	if o := outcome(t, k); o.Code != 6 {
		t.Errorf("it ended with %v", o)
	}
	wait(t, "the end of all", k.Gone())
}

func TestTheProgramDiesWithItsKeeper(t *testing.T) {
	for kind, group := range kinds {
		for name, credential := range map[string]*syscall.Credential{"": nil, " as another user": {Uid: 65534, Gid: 65534}} {
			t.Run(kind+name, func(t *testing.T) {
				if credential != nil {
					asRoot(t)
				}
				leavesNothing(t)
				c := shell(t, daemons(2)+"sleep 1000")
				c.Credential = credential
				c.Cgroup = group(t)
				k := start(t, c)
				running(t, c, 3)
				kill(t, k)
				if o := outcome(t, k); o.Known && o.Signal != unix.SIGKILL {
					t.Errorf("it ended with %v", o)
				}
				if !k.Program().Gone() {
					t.Error("it lives")
				}
				wait(t, "the end of all", k.Gone())
				left := family(c)
				if c.Cgroup != "" && left != nil {
					t.Errorf("alive: %v", left)
				}
				sweep(t, c) // without a cgroup nobody else does
			})
		}
	}
}

// kill kills the keeper itself.
func kill(t *testing.T, k *keeper.Keeper) {
	t.Helper()
	if err := unix.Kill(k.Record().Keeper.PID, unix.SIGKILL); err != nil { // not waited for before the test is over
		t.Fatal(err)
	}
}

func TestTheKeeperOutlivesSignals(t *testing.T) {
	leavesNothing(t)
	c := shell(t, "trap 'echo terminated; exit 8' TERM; echo ready; while :; do sleep 0.01; done")
	k := start(t, c)
	says(t, c, "ready")
	pid := k.Record().Keeper.PID
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGPIPE, unix.SIGQUIT, unix.SIGTSTP, unix.SIGUSR1, unix.SIGTERM} {
		if err := unix.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
	}
	if o := outcome(t, k); o.Code != 8 { // SIGTERM was passed on
		t.Errorf("it ended with %v", o)
	}
	wait(t, "the end of all", k.Gone())
	if text(c.Log) != "ready\nterminated\n" {
		t.Errorf("the log is %q", text(c.Log))
	}
}

func TestAPipeThatAStrangerHoldsDoesNotHoldUpTheEnd(t *testing.T) {
	leavesNothing(t)
	c := shell(t, "echo ready; while [ ! -e "+filepath.Join(t.TempDir(), "go")+" ]; do sleep 0.01; done; exit 2")
	k := start(t, c)
	says(t, c, "ready")
	held, err := os.OpenFile(proc(k.Program().PID(), "fd/1"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := k.Terminate(); err != nil {
		t.Fatal(err)
	}
	if o := outcome(t, k); o.Signal != unix.SIGTERM {
		t.Errorf("it ended with %v", o)
	}
	wait(t, "the end of all", k.Gone())
}
