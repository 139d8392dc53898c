package keeper_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	if trials, _ := filepath.Glob(filepath.Join(folder, "fairlead-trial-*")); trials != nil {
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
