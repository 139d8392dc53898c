package keeper_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/keeper"
)

func TestCgroupsCanBeMadeBelowWhatIsFound(t *testing.T) {
	leavesNothing(t)
	c := shell(t, "cat /proc/self/cgroup; exec sleep 1000")
	c.Cgroup = ownCgroup(t)
	k := start(t, c)
	says(t, c, "0::")
	if !strings.Contains(text(c.Log), "/"+filepath.Base(c.Cgroup)+"\n") {
		t.Errorf("its cgroups are %q", text(c.Log))
	}
	if own := text(proc(k.Record().Keeper.PID, "cgroup")); strings.Contains(own, filepath.Base(c.Cgroup)) {
		t.Errorf("the keeper is in it, too: %q", own)
	}
	folder, err := keeper.Cgroups()
	if err != nil {
		t.Fatal(err)
	}
	if trials, _ := filepath.Glob(filepath.Join(folder, fmt.Sprintf("fairlead-trial-%d-*", os.Getpid()))); trials != nil {
		t.Errorf("left: %v", trials)
	}
	if _, err := os.Stat(filepath.Join(c.Cgroup, "cgroup.kill")); err != nil {
		t.Error(err)
	}
}

func TestTheFolderOfACgroupIsFoundInMountinfo(t *testing.T) {
	for _, tt := range []struct{ line, path, want string }{
		{"41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw", "/", "/sys/fs/cgroup/unified"},
		{"41 31 0:38 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw", "/a.slice/b", "/sys/fs/cgroup/a.slice/b"},
		{`41 31 0:38 / /with\040space rw - cgroup2 cgroup2 rw`, "/a", "/with space/a"},
		{"41 31 0:38 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "/box/a", "/sys/fs/cgroup/a"},
		{"41 31 0:38 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "/boxes/a", ""},
		{"41 31 0:38 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "/", ""},
		{"41 31 0:38 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu", "/", ""},
		{"41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "/../../other", ""},
		{"", "/", ""},
		{" - cgroup2 ", "/", ""},
	} {
		got, ok := keeper.FolderOf(tt.line, tt.path)
		if got != tt.want || ok != (tt.want != "") {
			t.Errorf("%q of %q is %q, %v, want %q", tt.path, tt.line, got, ok, tt.want)
		}
	}
}

func TestAProgramThatCannotBeWrittenDownIsNotExecuted(t *testing.T) {
	leavesNothing(t)
	ran := filepath.Join(t.TempDir(), "ran")
	c := shell(t, "echo >"+ran)
	full := errors.New("the disk is full")
	c.Recorded = func(keeper.Record) error { return full }
	if k, err := keeper.Start(t.Context(), c); !errors.Is(err, full) {
		t.Errorf("%v, %v, want %v", k, err, full)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("it ran")
	}
}

func TestTheEndOfAProgramIsToldAlsoIfItsKeeperWasStopped(t *testing.T) {
	leavesNothing(t)
	k := start(t, shell(t, "exec sleep 1000"))
	if err := syscall.Kill(k.Record().Keeper.PID, syscall.SIGSTOP); err != nil { // not reaped, so the number is its own
		t.Fatal(err)
	}
	if err := k.Program().Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-k.Ended():
	case <-time.After(20 * time.Second):
		t.Fatal("its end is not told")
	}
	if out := k.Outcome(); out.Signal != syscall.SIGKILL {
		t.Errorf("it has ended by %v", out)
	}
}
