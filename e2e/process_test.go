package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
)

// A process is one that a test has started.
type process struct {
	cmd    *exec.Cmd
	stdin  *os.File
	stdout output
	stderr output
	done   chan struct{} // closed when it was waited for
}

// start starts a process in a group of its own, which is that of its session if it leads one. It is ended with the test.
func (w *world) start(cmd *exec.Cmd) *process {
	w.t.Helper()
	var ours, theirs [3]*os.File // standard input, output and error
	for i := range ours {
		r, wr, err := os.Pipe()
		if err != nil {
			w.t.Fatal(err)
		}
		if ours[i], theirs[i] = r, wr; i == 0 {
			ours[i], theirs[i] = wr, r
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = !cmd.SysProcAttr.Setsid
	cmd.Env = append(w.environ(), cmd.Env...)
	err := cmd.Start()
	for _, f := range theirs {
		f.Close()
	}
	name := strings.Join(append([]string{filepath.Base(cmd.Path)}, cmd.Args[1:]...), " ")
	p := &process{
		cmd: cmd, stdin: ours[0], stdout: collect(name+": stdout", ours[1]), stderr: collect(name+": stderr", ours[2]), done: make(chan struct{}),
	}
	if err != nil {
		p.stdin.Close()
		w.t.Fatal(err)
	}
	go func() {
		cmd.Wait()
		p.stdin.Close()
		close(p.done)
	}()
	w.processes = append(w.processes, p)
	return p
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill sends SIGKILL and waits for the process, as who starts the next one does.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// freeze sends SIGSTOP and returns when the process has stopped.
func (p *process) freeze(t *testing.T) {
	t.Helper()
	p.cmd.Process.Signal(syscall.SIGSTOP)
	for {
		err := unix.Waitid(unix.P_PID, p.pid(), nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if err == nil {
			return
		}
		if err != unix.EINTR {
			t.Fatalf("wait for %v to stop: %v", p.cmd.Args, err)
		}
	}
}

// exit waits for the process's own end, and returns its exit code, or 128 and the signal's number.
func (p *process) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Fatalf("%v has not ended within %v\n%v", p.cmd.Args, patience, p.stderr)
	}
	if s := p.cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() {
		return 128 + int(s.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// say writes a line to the process's standard input.
func (p *process) say(t *testing.T, line string) {
	t.Helper()
	if _, err := p.stdin.WriteString(line + "\n"); err != nil {
		t.Fatalf("say %q to %v: %v\n%v", line, p.cmd.Args, err, p.stderr)
	}
}

// A watched process is held by its pidfd, so that its number cannot become another's.
type watched struct {
	stage.Process
	pidfd int
}

// watch takes hold of processes until the test ends. Those that are gone by then are left out.
func watch(t *testing.T, all []stage.Process) []watched {
	t.Helper()
	var held []watched
	for _, s := range all {
		fd, err := unix.PidfdOpen(s.PID, 0)
		if err == unix.ESRCH {
			continue
		}
		if err != nil {
			t.Fatalf("open process %v: %v", s, err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		held = append(held, watched{s, fd})
	}
	return held
}

// gone waits for the process's end, and reports whether it came within d.
func (p watched) gone(d time.Duration) bool {
	for deadline := time.Now().Add(d); ; {
		fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(0, time.Until(deadline)).Milliseconds()))
		if err != unix.EINTR {
			return n == 1
		}
	}
}

func (p watched) kill() { unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0) }

// alive returns those that live at this moment.
func alive(all []watched) []watched {
	return slices.DeleteFunc(slices.Clone(all), func(p watched) bool { return p.gone(0) })
}

// allGone waits for the end of all and returns how long that took since begun, on the clock of monotonic.
func allGone(t *testing.T, all []watched, begun int64) time.Duration {
	t.Helper()
	for _, p := range all {
		if !p.gone(patience) {
			t.Fatalf("process %v lives after %v", p.Process, time.Duration(monotonic()-begun))
		}
	}
	return time.Duration(monotonic() - begun)
}

// monotonic is CLOCK_MONOTONIC in nanoseconds: the one clock that all processes share.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // Linux always has it
	}
	return ts.Nano()
}
