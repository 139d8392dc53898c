package runner_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/services/runner"
)

func TestDaemonsEndWithTheCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "go")
	cmd := shell(daemons(10) + `while [ ! -e ` + file + ` ]; do sleep 0.01; done; exit 5`)
	mark := marked(cmd)
	result := start(t, t.Context(), prepare(t, cmd, runner.Options{}))
	eventually(t, "the daemons run", func() bool { return len(named(mark, "sleep")) >= 10 })
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := wait(t, "the end", result); runner.ExitStatus(err) != 5 {
		t.Errorf("error %v, want status 5", err)
	}
	if left := family(mark); left != nil {
		t.Errorf("alive after Run: %v", left)
	}
}

func TestTheEndOfTheContextEndsTheContainer(t *testing.T) {
	const grace = 200 * time.Millisecond
	for _, test := range []struct {
		name, script string
		grace        time.Duration
		want         runner.ExitError
		least        time.Duration
	}{
		{"SIGTERM", "sleep 1000", time.Minute, runner.ExitError{Signal: unix.SIGTERM}, 0},
		{"SIGTERM of a stopped one", "(sleep 1000 &); kill -STOP $$", time.Minute, runner.ExitError{Signal: unix.SIGTERM}, 0},
		{"its own status", "trap 'exit 9' TERM; sleep 1000 & wait", time.Minute, runner.ExitError{Code: 9}, 0},
		{"deaf", daemons(3) + "sleep 1000", grace, runner.ExitError{Signal: unix.SIGKILL}, grace},
		{"deaf daemons", "(" + daemons(3) + "); sleep 1000", grace, runner.ExitError{Signal: unix.SIGTERM}, grace},
		{"no grace", daemons(3) + "sleep 1000", -1, runner.ExitError{Signal: unix.SIGKILL}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			cmd := shell(test.script)
			mark := marked(cmd)
			result := start(t, ctx, prepare(t, cmd, runner.Options{Grace: test.grace}))
			eventually(t, "it runs", func() bool { return len(named(mark, "sleep")) > 0 })
			reason := errors.New("enough")
			begun := time.Now()
			cancel(reason)
			err := wait(t, "the end", result)
			if got, ok := errors.AsType[*runner.ExitError](err); !ok || *got != test.want || !errors.Is(err, reason) {
				t.Errorf("error %v, want the cause and %v", err, &test.want)
			}
			if took := time.Since(begun); took < test.least {
				t.Errorf("ended after %v, before the grace of %v", took, test.least)
			}
			if left := family(mark); left != nil {
				t.Errorf("alive after Run: %v", left)
			}
		})
	}
}

func TestOthersMayUseTheGraceAfterTheCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	cmd := shell(`sh -c 'trap "sleep 0.3; echo > ` + file + `; exit" TERM; touch ` + file + `.up; sleep 1000 & wait' & sleep 1000`)
	mark := marked(cmd)
	ctx, cancel := context.WithCancel(t.Context())
	result := start(t, ctx, prepare(t, cmd, runner.Options{Grace: time.Minute}))
	eventually(t, "it runs", func() bool {
		_, err := os.Stat(file + ".up")
		return err == nil && len(named(mark, "sleep")) == 2
	})
	cancel()
	if err := wait(t, "the end", result); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error("what remained was not waited for:", err)
	}
}

func TestAKilledRunnerLeavesNothing(t *testing.T) {
	for _, n := range []int{10, 300} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			self := exec.Command(executable(t), "/bin/sh", "-c", daemons(n)+"sleep 1000")
			self.Stderr = os.Stderr
			self.Env = append(self.Environ(), roleVar+"=runner")
			mark := marked(self)
			if err := self.Start(); err != nil {
				t.Fatal(err)
			}
			defer self.Wait()
			defer self.Process.Kill()
			eventually(t, "the daemons run", func() bool { return len(named(mark, "sleep")) == n+1 })
			took := deathTime(t, family(mark), self.Process)
			t.Logf("all %d processes gone %v after the runner's SIGKILL", n+1, took)
			if left := family(mark); left != nil {
				t.Errorf("alive: %v", left)
			}
		})
	}
}

// deathTime kills the runner and returns when all members have ended.
func deathTime(t *testing.T, members []member, runner *os.Process) time.Duration {
	t.Helper()
	var polls []unix.PollFd
	for _, m := range members {
		fd, err := unix.PidfdOpen(m.pid, 0)
		if err != nil {
			t.Fatalf("%v: %v", m, err)
		}
		defer unix.Close(fd)
		polls = append(polls, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	begun := time.Now()
	if err := runner.Kill(); err != nil {
		t.Fatal(err)
	}
	for i := range polls {
		n, err := unix.Poll(polls[i:i+1], int(patience.Milliseconds()))
		for err == unix.EINTR {
			n, err = unix.Poll(polls[i:i+1], int(patience.Milliseconds()))
		}
		if n != 1 || err != nil {
			t.Fatalf("%v is alive after %v (%v)", members[i], patience, err)
		}
	}
	return time.Since(begun)
}

// The kernel sends the init's death signal when a thread ends, not the process.
func TestTheEndOfOtherThreadsEndsNoContainer(t *testing.T) {
	for range 5 {
		cmd := shell("read line; exit 6")
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdin = r
		c := prepare(t, cmd, runner.Options{})
		r.Close()
		result := start(t, t.Context(), c)
		var threads sync.WaitGroup
		for range 20 {
			threads.Go(runtime.LockOSThread) // a goroutine that ends locked ends its thread
		}
		threads.Wait()
		fmt.Fprintln(w)
		w.Close()
		if err := wait(t, "the end", result); runner.ExitStatus(err) != 6 {
			t.Fatalf("error %v, want status 6", err)
		}
	}
}

func TestTheDeathOfTheInitIsTold(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "1000")
	mark := marked(cmd)
	c := prepare(t, cmd, runner.Options{})
	result := start(t, t.Context(), c)
	eventually(t, "it runs", func() bool { return len(named(mark, "sleep")) == 1 })
	if err := syscall.Kill(c.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := wait(t, "the end", result); runner.ExitStatus(err) != 125 {
		t.Errorf("error %v, want one of status 125", err)
	}
	eventually(t, "the command is gone", func() bool { return family(mark) == nil })
}

func TestAStoppedInitIsEndedToo(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "1000")
	mark := marked(cmd)
	c := prepare(t, cmd, runner.Options{})
	start(t, t.Context(), c)
	eventually(t, "it runs", func() bool { return len(named(mark, "sleep")) == 1 })
	if err := syscall.Kill(c.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if left := family(mark); left != nil {
		t.Errorf("alive after Close: %v", left)
	}
}

func TestTheInitOutlivesTheSignalsOfItsGroup(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "1000")
	mark := marked(cmd)
	c := prepare(t, cmd, runner.Options{})
	result := start(t, t.Context(), c)
	eventually(t, "it runs", func() bool { return len(named(mark, "sleep")) == 1 })
	for _, sig := range []syscall.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGABRT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGVTALRM,
		unix.SIGPROF, unix.SIGPIPE, unix.SIGIO, unix.SIGPWR, unix.SIGWINCH, unix.SIGXCPU, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU,
	} {
		if err := syscall.Kill(c.PID(), sig); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the command takes a signal", func() bool { return c.Signal(unix.SIGINT) == nil })
	err := wait(t, "the end", result)
	if got, ok := errors.AsType[*runner.ExitError](err); !ok || got.Signal != unix.SIGINT {
		t.Errorf("error %v, want SIGINT's", err)
	}
}
