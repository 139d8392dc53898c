package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
)

// An actor is a process that the machine starts, and starts again when it has ended.
type actor struct {
	m       *machine
	kind    string
	command func() *exec.Cmd

	mu      sync.Mutex
	process *os.Process // nil: it is over, or between two
	stdin   *os.File
	stdout  *stage.Output
	stderr  *os.File
	meant   bool          // something has ended it
	changed chan struct{} // closed and replaced when it was started
	ended   bool
}

// newActor has an actor started, and started again until the machine ends.
func (m *machine) newActor(kind string, command func() *exec.Cmd) *actor {
	a := &actor{m: m, kind: kind, command: command, changed: make(chan struct{})}
	m.keeping.Go(a.keep)
	return a
}

func (a *actor) keep() {
	defer func() {
		a.mu.Lock()
		a.ended = true
		a.mu.Unlock()
	}()
	for !a.m.ending.Load() {
		cmd, err := a.start()
		if err != nil {
			a.m.found(finding(machineFault, "start a %s: %v", a.kind, err))
			return
		}
		cmd.Wait()
		a.gone(cmd)
	}
}

// start starts it once.
func (a *actor) start() (*exec.Cmd, error) {
	cmd := a.command()
	cmd.Env = append(append(os.Environ(), "FAIRLEAD_SOCKET="+a.m.socket(), "GORACE="+a.m.gorace()), cmd.Env...)
	in, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	out, theirs, err := os.Pipe()
	if err != nil {
		ours.Close()
		return nil, err
	}
	defer theirs.Close()
	cmd.Stdin, cmd.Stdout = in, theirs
	if cmd.Stderr == nil {
		if cmd.Stderr, err = os.CreateTemp(string(a.m.place), "said-"); err != nil {
			return nil, errors.Join(err, ours.Close(), out.Close())
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, ours.Close(), out.Close())
	}
	a.process, a.stdin, a.stdout, a.meant = cmd.Process, ours, stage.Collect(out, patience), false
	a.stderr = cmd.Stderr.(*os.File)
	close(a.changed)
	a.changed = make(chan struct{})
	return cmd, nil
}

// gone notes that it has ended, and finds one that nothing has ended.
func (a *actor) gone(cmd *exec.Cmd) {
	a.mu.Lock()
	a.process = nil
	meant := a.meant
	a.stdin.Close()
	a.mu.Unlock()
	if a.stderr != a.m.log {
		text, _ := os.ReadFile(a.stderr.Name())
		a.stderr.Close()
		if cmd.ProcessState.ExitCode() == 2 { // the Go runtime's own words at a SIGQUIT
			os.Rename(a.stderr.Name(), a.m.at(a.kind+".goroutines"))
		}
		os.Remove(a.stderr.Name())
		if !a.mayEnd(meant, cmd.ProcessState) {
			a.m.found(finding(crash, "a %s has ended by itself: %v\n%.4000s", a.kind, cmd.ProcessState, text))
		}
	} else if !a.mayEnd(meant, cmd.ProcessState) {
		a.m.found(finding(crash, "brokerd has ended by itself: %v", cmd.ProcessState))
	}
	a.m.report.exit(a.kind, cmd.ProcessState)
}

// mayEnd reports whether a process may end like that. A stranger ends when its service is stopped. A runtime ends when its container does, when its network is lost, and when it does not get a lease.
func (a *actor) mayEnd(meant bool, state *os.ProcessState) bool {
	if meant || a.m.ending.Load() {
		return true
	}
	if a.kind == stranger && state.Success() {
		return true // an operator has stopped the service
	}
	if a.kind != runtimes {
		return false
	}
	switch state.ExitCode() {
	case 69, 125, 137, 143:
		return true
	}
	return false
}

// signal sends a signal, and reports whether there was a process to send it to.
func (a *actor) signal(sig syscall.Signal) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.process == nil {
		return false
	}
	if sig == syscall.SIGKILL || sig == syscall.SIGTERM || sig == syscall.SIGQUIT {
		a.meant = true
	}
	return a.process.Signal(sig) == nil
}

// mean notes that it is to end for a reason that is no signal.
func (a *actor) mean() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.meant = true
}

// pid is its number; 0: it is not there now.
func (a *actor) pid() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.process == nil {
		return 0
	}
	return a.process.Pid
}

// over reports whether it has ended for good.
func (a *actor) over() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended
}

// next returns the output of the process that is there, or of the next one.
func (a *actor) next() (*stage.Output, error) {
	late := time.After(patience)
	for {
		a.mu.Lock()
		process, out, changed := a.process, a.stdout, a.changed
		a.mu.Unlock()
		if process != nil {
			return out, nil
		}
		select {
		case <-changed:
		case <-late:
			return nil, fmt.Errorf("a %s is not started", a.kind)
		}
	}
}

// ask says a word to a crowd, and waits for its answer.
func (a *actor) ask(phase string) (answer, error) {
	out, err := a.next()
	if err != nil {
		return answer{}, err
	}
	a.mu.Lock()
	_, err = a.stdin.WriteString(phase + "\n")
	a.mu.Unlock()
	for err == nil {
		var line string
		var got answer
		if line, err = out.TryNext(); err == nil && json.Unmarshal([]byte(line), &got) == nil && got.Phase == phase {
			return got, nil
		}
	}
	return answer{}, fmt.Errorf("a crowd, pid %d, does not answer %q: %w", a.pid(), phase, err)
}
