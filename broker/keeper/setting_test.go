package keeper_test

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker/keeper"
)

// sleeper is a program of which a test looks at what it has inherited.
func sleeper(t *testing.T) keeper.Config {
	t.Helper()
	c := shell(t, "")
	c.Program = []string{"/bin/sleep", "1000"}
	return c
}

// open returns a file that the test closes.
func open(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// opened returns what a process has open: numbers and links, without those of pipes.
func opened(t *testing.T, pid int) (links []string) {
	t.Helper()
	entries, err := os.ReadDir(proc(pid, "fd"))
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return number(a.Name()) - number(b.Name()) })
	for _, e := range entries {
		link, _ := os.Readlink(proc(pid, "fd/"+e.Name()))
		kind, _, _ := strings.Cut(link, ":")
		links = append(links, e.Name()+" "+kind)
	}
	return links
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}

// status returns a line of /proc/PID/status.
func status(pid int, key string) string {
	for line := range strings.Lines(text(proc(pid, "status"))) {
		if value, found := strings.CutPrefix(line, key+":"); found {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return "no such line"
}

// limit returns a line of /proc/PID/limits.
func limit(pid int, name string) string {
	for line := range strings.Lines(text(proc(pid, "limits"))) {
		if value, found := strings.CutPrefix(line, name); found {
			return strings.Join(strings.Fields(value)[:2], " ")
		}
	}
	return "no such line"
}

func TestTheProgramHasWhatItsConfigSaysAndNothingElse(t *testing.T) {
	leavesNothing(t)
	one, two, held := open(t, "one"), open(t, "two"), open(t, "held")
	c := sleeper(t)
	c.Dir = t.TempDir()
	c.Umask = 0o027
	c.Nice = 5
	c.Limits = []keeper.Limit{
		{Resource: unix.RLIMIT_NOFILE, Soft: 100, Hard: 200}, {Resource: unix.RLIMIT_CORE}, {Resource: unix.RLIMIT_CPU, Soft: 1000, Hard: ^uint64(0)},
	}
	c.Files = []*os.File{one, two}
	c.Hold = []*os.File{held}
	k := start(t, c)
	pid := k.Program().PID()
	stat := strings.Fields(text(proc(pid, "stat"))) // its name has no spaces
	for what, values := range map[string][2]string{
		"executable":    {readlink(t, proc(pid, "exe")), evaluate(t, "/bin/sleep")},
		"arguments":     {text(proc(pid, "cmdline")), "/bin/sleep\x001000\x00"},
		"environment":   {text(proc(pid, "environ")), strings.Join(c.Environment, "\x00") + "\x00"},
		"folder":        {readlink(t, proc(pid, "cwd")), evaluate(t, c.Dir)},
		"umask":         {status(pid, "Umask"), "0027"},
		"nice value":    {stat[18], "5"},
		"process group": {stat[4], strconv.Itoa(pid)},
		"session":       {stat[5], strconv.Itoa(k.Record().Keeper.PID)},
		"parent":        {stat[3], strconv.Itoa(k.Record().Keeper.PID)},
		"open files":    {limit(pid, "Max open files"), "100 200"},
		"core":          {limit(pid, "Max core file size"), "0 0"},
		"cpu":           {limit(pid, "Max cpu time"), "1000 unlimited"},
		"blocked":       {status(pid, "SigBlk"), "0000000000000000"},
	} {
		if values[0] != values[1] {
			t.Errorf("%s: %q, want %q", what, values[0], values[1])
		}
	}
	want := fmt.Sprint([]string{"0 /dev/null", "1 pipe", "2 pipe", "3 " + one.Name(), "4 " + two.Name()})
	until(t, "it has open "+want, func() bool { return fmt.Sprint(opened(t, pid)) == want }) // its loader opens libraries, and closes them
	keeperHas := fmt.Sprint(links(t, k.Record().Keeper.PID))
	if !strings.Contains(keeperHas, held.Name()) || strings.Contains(keeperHas, one.Name()) {
		t.Errorf("the keeper has open: %s; want what it holds, and nothing of the program's", keeperHas)
	}
}

func readlink(t *testing.T, path string) string {
	t.Helper()
	link, err := os.Readlink(path)
	if err != nil {
		t.Error(err)
	}
	return link
}

func evaluate(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Error(err)
	}
	return path
}

// links returns what a process has open.
func links(t *testing.T, pid int) (links []string) {
	t.Helper()
	entries, err := os.ReadDir(proc(pid, "fd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		link, _ := os.Readlink(proc(pid, "fd/"+e.Name()))
		links = append(links, link)
	}
	return links
}

func TestWithoutAWordTheProgramHasItsStartersSettings(t *testing.T) {
	leavesNothing(t)
	k := start(t, sleeper(t))
	pid, own := k.Program().PID(), os.Getpid()
	for what, values := range map[string][2]string{
		"folder":    {readlink(t, proc(pid, "cwd")), "/"},
		"uid":       {status(pid, "Uid"), status(own, "Uid")},
		"groups":    {status(pid, "Groups"), status(own, "Groups")},
		"privilege": {status(pid, "NoNewPrivs"), status(own, "NoNewPrivs")},
		"stack":     {limit(pid, "Max stack size"), limit(own, "Max stack size")},
		"processes": {limit(pid, "Max processes"), limit(own, "Max processes")},
	} {
		if values[0] != values[1] {
			t.Errorf("%s: %q, want %q", what, values[0], values[1])
		}
	}
}

// inherit makes capabilities of this thread inheritable, and ambient where there are any.
func inherit(t *testing.T, set uint32) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	err := unix.Capget(&header, &sets[0])
	if err == nil {
		sets[0].Inheritable = set
		err = unix.Capset(&header, &sets[0])
	}
	if err == nil && set != 0 {
		err = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_ADMIN, 0, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// guard: bound and become of the second stage. The starter has inheritable and ambient capabilities, too.
func TestAProgramOfAnotherUserHasNothingOfItsStarters(t *testing.T) {
	asRoot(t)
	const none = "0000000000000000"
	for _, tt := range []struct {
		name                 string
		credential           syscall.Credential
		uid, gid, groups, no string
	}{
		{"with groups", syscall.Credential{Uid: 65534, Gid: 99999, Groups: []uint32{7, 1000}}, "65534 65534 65534 65534", "99999 99999 99999 99999", "7 1000", none},
		{"without groups", syscall.Credential{Uid: 1234, Gid: 5}, "1234 1234 1234 1234", "5 5 5 5", "", none},
		{"root", syscall.Credential{}, "0 0 0 0", "0 0 0 0", "", status(os.Getpid(), "CapEff")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leavesNothing(t)
			c := sleeper(t)
			c.Credential = &tt.credential
			runtime.LockOSThread() // the keeper has what the thread has that forks it
			inherit(t, 1<<unix.CAP_NET_ADMIN)
			k := start(t, c)
			inherit(t, 0)
			runtime.UnlockOSThread()
			pid := k.Program().PID()
			bounding := status(os.Getpid(), "CapBnd")
			if tt.credential.Uid != 0 {
				bounding = none
			}
			for key, want := range map[string]string{
				"Uid": tt.uid, "Gid": tt.gid, "Groups": tt.groups, "NoNewPrivs": "1", "CapEff": tt.no, "CapPrm": tt.no, "CapAmb": none, "CapInh": none, "CapBnd": bounding,
			} {
				if got := status(pid, key); got != want {
					t.Errorf("%s: %q, want %q", key, got, want)
				}
			}
		})
	}
}

func TestTheProgramIgnoresNoSignalThatItsStarterIgnores(t *testing.T) {
	leavesNothing(t)
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGUSR1)
	t.Cleanup(func() { signal.Reset(syscall.SIGHUP, syscall.SIGINT, syscall.SIGUSR1) })
	k := start(t, sleeper(t))
	if got := status(k.Program().PID(), "SigIgn"); got != "0000000000000000" {
		t.Errorf("it ignores %s", got)
	}
}

func TestTightLimitsHitTheProgramAndNotItsStart(t *testing.T) {
	leavesNothing(t)
	for _, l := range []keeper.Limit{
		{Resource: unix.RLIMIT_NOFILE, Soft: 4, Hard: 4},
		{Resource: unix.RLIMIT_AS, Soft: 32 << 20, Hard: 32 << 20},
		{Resource: unix.RLIMIT_DATA, Soft: 4 << 20, Hard: 4 << 20},
		{Resource: unix.RLIMIT_FSIZE},
		{Resource: unix.RLIMIT_NPROC, Soft: 1, Hard: 1},
		{Resource: unix.RLIMIT_STACK, Soft: 1 << 20, Hard: 1 << 20},
	} {
		c := shell(t, "echo works; echo well")
		c.Limits = []keeper.Limit{l}
		if os.Geteuid() == 0 {
			c.Credential = &syscall.Credential{Uid: 61234, Gid: 61234}
		}
		k := start(t, c)
		if o := outcome(t, k); o.String() != "exit status 0" || text(c.Log) != "works\nwell\n" {
			t.Errorf("resource %d: %v, and the log is %q", l.Resource, o, text(c.Log))
		}
	}
}
