package keeper_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker/keeper"
)

// write writes a file of the test's own.
func write(t *testing.T, name, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAStartThatFailsSaysAtWhichStepAndLeavesNothing(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	plain := write(t, "plain", "#!/bin/sh\n", 0o600)
	lost := write(t, "lost", "#! "+missing+" -x\n", 0o700)
	noise := write(t, "noise", "\x01\x02\x03", 0o700)
	folder := t.TempDir()
	program := func(path string) func(*keeper.Config) {
		return func(c *keeper.Config) { c.Program = []string{path, "argument"} }
	}
	for _, tt := range []struct {
		name   string
		change func(*keeper.Config)
		want   keeper.StartError // with the beginning of the step
	}{
		{"no program", func(c *keeper.Config) { c.Program = nil }, keeper.StartError{Step: "execute", Errno: unix.EINVAL}},
		{"program is missing", program(missing), keeper.StartError{Step: "execute", Path: missing, Errno: unix.ENOENT}},
		{"program is not executable", program(plain), keeper.StartError{Step: "execute", Path: plain, Errno: unix.EACCES}},
		{"program is a folder", program(folder), keeper.StartError{Step: "execute", Path: folder, Errno: unix.EACCES}},
		{"program is noise", program(noise), keeper.StartError{Step: "execute", Path: noise, Errno: unix.ENOEXEC}},
		{"interpreter is missing", program(lost), keeper.StartError{Step: "execute " + lost + " by its interpreter", Path: missing, Errno: unix.ENOENT}},
		{"folder is missing", func(c *keeper.Config) { c.Dir = missing }, keeper.StartError{Step: "change to the folder", Path: missing, Errno: unix.ENOENT}},
		{"folder is a file", func(c *keeper.Config) { c.Dir = plain }, keeper.StartError{Step: "change to the folder", Path: plain, Errno: unix.ENOTDIR}},
		{"limit is unknown", func(c *keeper.Config) { c.Limits = []keeper.Limit{{Resource: 99}} },
			keeper.StartError{Step: "set the limit of resource 99", Errno: unix.EINVAL}},
		{"limit is above the hard one", func(c *keeper.Config) { c.Limits = []keeper.Limit{{Resource: unix.RLIMIT_CORE, Soft: 2, Hard: 1}} },
			keeper.StartError{Step: "set the limit of resource 4 to 2, 1", Errno: unix.EINVAL}},
		{"cgroup cannot be made", func(c *keeper.Config) { c.Cgroup = missing + "/cgroup" },
			keeper.StartError{Step: "make the cgroup", Path: missing + "/cgroup", Errno: unix.ENOENT}},
		{"cgroup is no cgroup", func(c *keeper.Config) { c.Cgroup = missing }, keeper.StartError{Step: "join the cgroup", Path: missing, Errno: unix.ENOENT}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leavesNothing(t)
			c := shell(t, "echo it runs")
			tt.change(&c)
			k, err := keeper.Start(t.Context(), c)
			if err == nil {
				end(t, k)
				t.Fatal("it was started")
			}
			got, ok := errors.AsType[*keeper.StartError](err)
			if !ok || !strings.HasPrefix(got.Step, tt.want.Step) || got.Path != tt.want.Path || got.Errno != tt.want.Errno || !errors.Is(err, tt.want.Errno) {
				t.Errorf("the error is %#v, want %#v", err, tt.want)
			}
			if c.Cgroup != "" {
				if _, err := os.Stat(c.Cgroup); err == nil {
					t.Error("the cgroup is left")
				}
			}
			if text(c.Log) != "" {
				t.Errorf("the log says %q", text(c.Log))
			}
		})
	}
}

func TestACgroupThatIsThereIsAnothers(t *testing.T) {
	leavesNothing(t)
	c := sleeper(t)
	c.Cgroup = ownCgroup(t)
	k := start(t, c)
	_, err := keeper.Start(t.Context(), c)
	if got, ok := errors.AsType[*keeper.StartError](err); !ok || got.Errno != unix.EEXIST {
		t.Errorf("a second start in one cgroup: %v", err)
	}
	if k.Program().Gone() {
		t.Error("the first was killed for it")
	}
}

func TestAStartThatIsGivenUpLeavesNothing(t *testing.T) {
	leavesNothing(t)
	started, lapsed := 0, 0
	for i := range 20 {
		c := sleeper(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
		k, err := keeper.Start(ctx, c)
		cancel()
		switch {
		case err == nil:
			started++
			end(t, k)
		case errors.Is(err, context.DeadlineExceeded):
			lapsed++
		default:
			t.Error(err)
		}
		if left := family(c); left != nil {
			t.Errorf("left: %v", left)
		}
	}
	if lapsed == 0 {
		t.Error("no start was given up")
	}
	t.Logf("%d were started, %d were given up", started, lapsed)
}

func TestTheOutcomeIsHowTheProgramEnded(t *testing.T) {
	for _, tt := range []struct {
		script, want string
		outcome      keeper.Outcome
	}{
		{"exit 0", "exit status 0", keeper.Outcome{Known: true}},
		{"exit 3", "exit status 3", keeper.Outcome{Known: true, Code: 3}},
		{"exit 255", "exit status 255", keeper.Outcome{Known: true, Code: 255}},
		{"kill -TERM $$", "signal: terminated", keeper.Outcome{Known: true, Signal: unix.SIGTERM}},
		{"kill -KILL $$", "signal: killed", keeper.Outcome{Known: true, Signal: unix.SIGKILL}},
		{"echo one; echo two >&2; printf three >&2; kill -ABRT $$", "signal: aborted",
			keeper.Outcome{Known: true, Signal: unix.SIGABRT, Stderr: []string{"two", "three"}}},
	} {
		t.Run(tt.script, func(t *testing.T) {
			leavesNothing(t)
			c := shell(t, tt.script)
			c.Limits = []keeper.Limit{{Resource: unix.RLIMIT_CORE}}
			k := start(t, c)
			o := outcome(t, k)
			if o.String() != tt.want || !reflect.DeepEqual(o, tt.outcome) {
				t.Errorf("it is %v, %#v, want %v, %#v", o, o, tt.want, tt.outcome)
			}
			wait(t, "the end of all", k.Gone())
		})
	}
}

func TestACoreDumpIsTold(t *testing.T) {
	if o := (keeper.Outcome{Known: true, Signal: unix.SIGSEGV, Core: true}).String(); o != "signal: segmentation fault (core dumped)" {
		t.Error(o)
	}
	if o := (keeper.Outcome{}).String(); o != "unknown" {
		t.Error(o)
	}
}

func TestTheOutcomeHasTheLastLinesOfStandardErrorOnly(t *testing.T) {
	leavesNothing(t)
	k := start(t, shell(t, "seq 1000 1>&2; seq 3000 4000; exit 1"))
	want := strings.Fields(count(1000))[980:]
	if o := outcome(t, k); !slices.Equal(o.Stderr, want) {
		t.Errorf("they are %q", o.Stderr)
	}
	long := start(t, shell(t, `head -c 100000 /dev/zero | tr '\0' x >&2`))
	if o := outcome(t, long); len(o.Stderr) != 1 || len(o.Stderr[0]) != 4<<10 {
		t.Errorf("of a long line they are %d lines", len(o.Stderr))
	}
}

func TestBeforeTheEndThereIsNoOutcome(t *testing.T) {
	leavesNothing(t)
	k := start(t, sleeper(t))
	if o := k.Outcome(); o.Known {
		t.Errorf("it is %v", o)
	}
	if err := k.Terminate(); err != nil {
		t.Fatal(err)
	}
	if o := outcome(t, k); o.Signal != unix.SIGTERM {
		t.Errorf("it is %v", o)
	}
}

func TestAStoppedProgramIsTerminated(t *testing.T) {
	leavesNothing(t)
	k := start(t, sleeper(t))
	if err := errors.Join(k.Program().Signal(syscall.SIGSTOP), k.Terminate()); err != nil {
		t.Fatal(err)
	}
	if o := outcome(t, k); o.Signal != unix.SIGTERM {
		t.Errorf("it is %v", o)
	}
}

func TestManyStartsLeaveNothing(t *testing.T) {
	leavesNothing(t)
	const starts = 20
	done := make(chan error, starts)
	for range starts {
		c := shell(t, "(setsid sleep 1000 &); exit 7")
		go func() {
			k, err := keeper.Start(t.Context(), c)
			if err == nil {
				<-k.Gone()
				if o := k.Outcome(); o.Code != 7 {
					err = errors.New(o.String())
				}
				k.Close()
			}
			if left := family(c); left != nil {
				err = errors.Join(err, errors.New("left: "+strings.Join(left, " ")))
			}
			done <- err
		}()
	}
	for range starts {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
