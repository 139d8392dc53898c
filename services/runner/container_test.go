package runner_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/services/runner"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

func TestRunTellsHowTheCommandEnded(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := shell("exit 0")
	missing.Dir = "/does/not/exist"
	for _, test := range []struct {
		name   string
		cmd    *exec.Cmd
		want   error
		status int
	}{
		{"success", shell("exit 0"), nil, 0},
		{"status 1", shell("exit 1"), &runner.ExitError{Code: 1}, 1},
		{"status 255", shell("exit 255"), &runner.ExitError{Code: 255}, 255},
		{"SIGTERM", shell("kill -TERM $$"), &runner.ExitError{Signal: syscall.SIGTERM}, 143},
		{"SIGKILL", shell("kill -KILL $$"), &runner.ExitError{Signal: syscall.SIGKILL}, 137},
		{"no such file", exec.Command("/does/not/exist"), &runner.StartError{Path: "/does/not/exist", Err: syscall.ENOENT}, 127},
		{"not executable", exec.Command(text), &runner.StartError{Path: text, Err: syscall.EACCES}, 126},
		{"a folder", &exec.Cmd{Path: "/"}, &runner.StartError{Path: "/", Err: syscall.EACCES}, 126},
		{"no such folder", missing, nil, 125},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := prepare(t, test.cmd, runner.Options{}).Run(t.Context())
			if status := runner.ExitStatus(err); status != test.status {
				t.Errorf("status %d for %v, want %d", status, err, test.status)
			}
			switch want := test.want.(type) {
			case *runner.ExitError:
				if got, ok := errors.AsType[*runner.ExitError](err); !ok || *got != *want {
					t.Errorf("error %#v, want %#v", err, want)
				}
			case *runner.StartError:
				if got, ok := errors.AsType[*runner.StartError](err); !ok || *got != *want {
					t.Errorf("error %#v, want %#v", err, want)
				}
			}
		})
	}
}

func TestACommandNotInThePathIsAStartError(t *testing.T) {
	_, err := runner.Prepare(exec.Command("fairlead-no-such-command"), options())
	if _, ok := errors.AsType[*runner.StartError](err); !ok || runner.ExitStatus(err) != 127 {
		t.Errorf("error %#v with status %d, want a *StartError with 127", err, runner.ExitStatus(err))
	}
}

func TestPrepareRefusesWhatItWouldNotHonour(t *testing.T) {
	attr := shell("exit 0")
	attr.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	flags := shell("exit 0")
	flags.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	hole := shell("exit 0")
	hole.ExtraFiles = []*os.File{nil}
	for name, test := range map[string]struct {
		cmd     *exec.Cmd
		options runner.Options
	}{
		"a context of its own":  {exec.CommandContext(t.Context(), "/bin/true"), options()},
		"attributes":            {attr, options()},
		"a user namespace":      {flags, options()},
		"no extra file":         {hole, options()},
		"no path":               {&exec.Cmd{}, options()},
		"an unknown containing": {shell("exit 0"), runner.Options{Contain: "perhaps"}},
	} {
		if c, err := runner.Prepare(test.cmd, test.options); err == nil {
			c.Close()
			t.Errorf("%s: prepared", name)
		}
	}
}

func TestNothingRunsBeforeRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	c := prepare(t, shell("echo > "+file), runner.Options{})
	if err := syscall.Kill(c.PID(), 0); err != nil {
		t.Errorf("the init: %v", err)
	}
	if err := c.Signal(syscall.SIGTERM); err == nil {
		t.Error("a command that does not run yet took a signal")
	}
	c.Close()
	c.Close()
	if _, err := os.Stat(file); err == nil {
		t.Error("the command ran")
	}
	if err := c.Run(t.Context()); runner.ExitStatus(err) != 125 {
		t.Errorf("Run of a closed container: %v", err)
	}
}

func TestTheWitnessIsTheInit(t *testing.T) {
	c := prepare(t, shell("exit 0"), runner.Options{})
	copies, err := socket.Copy([]*os.File{c.Witness()})
	if err != nil {
		t.Fatal(err)
	}
	h, err := process.FromFile(copies[0])
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if h.PID() != c.PID() || h.Gone() {
		t.Errorf("it is process %d, gone %v, want %d, alive", h.PID(), h.Gone(), c.PID())
	}
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !h.Gone() {
		t.Error("it outlives the container")
	}
	if _, err := c.Witness().Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the container's descriptor after its end: %v, want %v", err, os.ErrClosed)
	}
}

func TestRunWithAnEndedContextRunsNothing(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("no reason")
	cancel(reason)
	file := filepath.Join(t.TempDir(), "file")
	if err := prepare(t, shell("echo > "+file), runner.Options{}).Run(ctx); !errors.Is(err, reason) {
		t.Errorf("error %v, want the cause", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the command ran")
	}
}

func TestACommandBehavesAsOutside(t *testing.T) {
	const script = `umask; pwd; ulimit -a; id -u; id -g; echo "$0 $*"; env | sort | cut -c 1-80
		grep -E '^(Sig(Blk|Ign|Cgt)|Cap(Inh|Prm|Eff|Amb)|Uid|Gid|NoNewPrivs|Seccomp):' /proc/self/status
		cat /proc/self/oom_score_adj; readlink /proc/self/fd/0`
	outputs := make([]bytes.Buffer, 2)
	for i := range outputs {
		cmd := exec.Command("/bin/sh", "-c", script, "a", "", "b c", "\xff")
		cmd.Dir = "/usr"
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "ODD=\xff\n"}
		for i := range 10 {
			cmd.Env = append(cmd.Env, fmt.Sprintf("BIG%d=%s", i, strings.Repeat("x", 100_000)))
		}
		cmd.Stdout = &outputs[i]
		if i == 0 {
			if err := cmd.Run(); err != nil {
				t.Fatal(err)
			}
		} else if err := prepare(t, cmd, runner.Options{}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if inside, outside := outputs[1].String(), outputs[0].String(); inside != outside {
		t.Errorf("inside:\n%s\noutside:\n%s", inside, outside)
	}
}

func TestTheCommandHasWhatTheRunnersProgramWasGiven(t *testing.T) {
	for _, test := range []struct{ name, given, show, want string }{
		{"SIGHUP ignored", "trap '' HUP", "grep SigIgn /proc/self/status", "SigIgn:\t0000000000000001"},
		{"a soft limit", "ulimit -Sn 500", "ulimit -Sn", "500"},
		{"a umask", "umask 027", "umask", "0027"},
		{"no open descriptor", "exec 7</dev/null", "ls /proc/self/fd/7 2>/dev/null || echo none", "none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command("/bin/sh", "-c", test.given+`; exec "$0" /bin/sh -c "$1"`, executable(t), test.show)
			cmd.Env = append(cmd.Environ(), roleVar+"=runner")
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if got := strings.TrimSpace(string(out)); err != nil || got != test.want {
				t.Errorf("got %q (%v), want %q", got, err, test.want)
			}
		})
	}
}

func TestACommandInheritsOnlyItsFiles(t *testing.T) {
	extra, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	for _, test := range []struct {
		files []*os.File
		want  []string
	}{
		{nil, []string{"0", "1", "2"}},
		{[]*os.File{extra, extra}, []string{"0", "1", "2", "3", "4"}},
	} {
		cmd := exec.Command("/bin/sleep", "1000")
		mark := marked(cmd)
		cmd.ExtraFiles = test.files
		c := prepare(t, cmd, runner.Options{})
		start(t, t.Context(), c)
		eventually(t, "the command runs", func() bool { return len(named(mark, "sleep")) == 1 })
		folder := "/proc/" + strconv.Itoa(named(mark, "sleep")[0].pid) + "/fd"
		// The loader has others open for a moment.
		eventually(t, fmt.Sprintf("the descriptors are %v", test.want), func() bool {
			entries, err := os.ReadDir(folder)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range entries {
				got = append(got, e.Name())
			}
			return slices.Equal(got, test.want)
		})
		c.Close()
	}
}

func TestReadersAndWritersWorkAsInOsExec(t *testing.T) {
	cmd := shell("cat; echo err >&2")
	var out, errs strings.Builder
	text := strings.Repeat("0123456789", 100_000)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(text), &out, &errs
	if err := prepare(t, cmd, runner.Options{}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out.String() != text || errs.String() != "err\n" {
		t.Errorf("%d bytes of output, want %d; errors %q", out.Len(), len(text), errs.String())
	}
}

func TestAPipeEndsWhenTheCommandClosesIt(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := shell("exec >&- 2>&-; sleep 1000")
	cmd.Stdout, cmd.Stderr = w, w
	c := prepare(t, cmd, runner.Options{})
	w.Close()
	start(t, t.Context(), c)
	end := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(r)
		end <- err
	}()
	if err := wait(t, "end of file", end); err != nil {
		t.Error(err)
	}
}

func TestProcShowsTheNamespace(t *testing.T) {
	if keeper() {
		t.Skip("a keeper has no namespace")
	}
	cmd := shell(`cat /proc/1/comm; echo $PPID; echo /proc/[0-9]*; echo $$`)
	var out strings.Builder
	cmd.Stdout = &out
	c := prepare(t, cmd, runner.Options{})
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(out.String())
	if shell := got[len(got)-1]; !slices.Equal(got, []string{"fairlead-init", "1", "/proc/1", "/proc/" + shell, shell}) {
		t.Errorf("got %q", got)
	}
	if c.Contained() != nil {
		t.Errorf("Contained says %v", c.Contained())
	}
}

func TestOrphansAreReaped(t *testing.T) {
	cmd := shell(`for i in 1 2 3; do
		p=$(sh -c 'sh -c "exit 7" >/dev/null & echo $!'); n=0
		while [ -e /proc/$p ]; do n=$((n+1)); [ $n -gt 500 ] && exit 1; sleep 0.01; done
	done`)
	if err := prepare(t, cmd, runner.Options{}).Run(t.Context()); err != nil {
		t.Error("an orphan stayed a zombie:", err)
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	round := func() {
		prepare(t, shell("exit 0"), runner.Options{}).Close()
		if err := prepare(t, shell("true"), runner.Options{}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	round() // the Go runtime's own descriptors come with the first
	goroutines, open := runtime.NumGoroutine(), descriptors()
	for range 5 {
		round()
	}
	if now := descriptors(); !slices.Equal(now, open) {
		t.Errorf("descriptors %v, before %v", now, open)
	}
	// A goroutine that was waited for may still be on its last instructions.
	eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
}

func TestRunOfTheDefaultOptions(t *testing.T) {
	err := runner.Run(t.Context(), shell("exit 4"))
	want := 4
	if keeper() {
		want = 125
	}
	if status := runner.ExitStatus(err); status != want {
		t.Errorf("status %d for %v, want %d", status, err, want)
	}
}

func TestAContainerRunsOnce(t *testing.T) {
	c := prepare(t, shell("exit 0"), runner.Options{})
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Run(t.Context()); err == nil {
		t.Error("it ran twice")
	}
	if err := c.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal after the end: %v", err)
	}
}
