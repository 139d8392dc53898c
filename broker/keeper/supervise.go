package keeper

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/process"
)

const (
	// outputWait is how long the report of the program's end waits for what it wrote: as long as the pipes' last holders take to die.
	outputWait = 50 * time.Millisecond
	// lastOutputWait is how long the keeper waits for the end of pipes that a stranger holds.
	lastOutputWait = time.Second
	// killInterval is how often, at first, what must die is looked through for what is left.
	killInterval = 5 * time.Millisecond
)

// The keeper's descriptors, as its starter lays them out: the order, the socket, the program's files, and those that are held.
const (
	orderFD = 3 + iota
	starterFD
	firstFileFD
)

// A supervisor is what the keeper's process does:
//
//	starting ── executed ──▶ running ── the program was reaped ──▶ ending ── no process is left ──▶ exit
//	    └──────────── a step failed, and the second stage was reaped ────▲
//
// It stays on the main thread.
type supervisor struct {
	order    order
	group    cgroup
	output   *output
	children chan os.Signal // SIGCHLD
	signals  chan os.Signal // SIGTERM and SIGUSR2
	stage    <-chan []byte  // what the second stage said, once it was executed or has failed; nil: heard
	program  int            // its pid, 0 after it was reaped
	id       process.ID
	pidfd    *process.Handle
	status   syscall.WaitStatus
	failed   bool // the program was never executed
}

// keep is the keeper's main function. It returns the exit status, which means nothing.
func keep() int {
	setName(keeperName)
	s := &supervisor{children: make(chan os.Signal, 1), signals: make(chan os.Signal, 8)}
	s.absorbSignals()
	var err error
	if s.order, err = readOrder(orderFD); err != nil {
		return 1
	}
	unix.Umask(0) // files get the mode that they are made with
	if step, path, err := s.start(); err != nil {
		_ = s.group.remove() // nothing was ever in it
		s.send(failed(step, path, err).encode(), nil)
		return 1
	}
	s.serve()
	s.finish()
	return 0
}

// absorbSignals handles what would end or stop a Go program. A handled signal has its default action again in an executed program.
func (s *supervisor) absorbSignals() {
	signal.Notify(s.children, syscall.SIGCHLD)
	signal.Notify(s.signals, syscall.SIGTERM, syscall.SIGUSR2)
	absorbed := make(chan os.Signal, 1) // nobody reads it: Notify drops what does not fit
	signal.Notify(absorbed, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGABRT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
}

// start starts the second stage of the program.
func (s *supervisor) start() (step, path string, err error) {
	if step, err := process.AdoptOrphans(); err != nil {
		return step, "", err
	}
	if err, told := errors.AsType[*StartError](checkOutputs(s.order.Stdout, s.order.Stderr)); told {
		return err.Step, err.Path, err.Errno
	}
	if s.order.Cgroup != "" {
		if err := cgroup(s.order.Cgroup).make(); err != nil {
			return "make the cgroup", s.order.Cgroup, err
		}
		s.group = cgroup(s.order.Cgroup)
	}
	var pipes [3][2]int // standard output, standard error, what the second stage says
	for i := range pipes {
		if err := unix.Pipe2(pipes[i][:], unix.O_CLOEXEC); err != nil {
			return "make a pipe", "", err
		}
	}
	files := []uintptr{0, uintptr(pipes[0][1]), uintptr(pipes[1][1])}
	for i := range s.order.Files {
		files = append(files, uintptr(firstFileFD+i))
	}
	s.program, err = syscall.ForkExec("/proc/self/exe", []string{execName, strconv.Itoa(s.order.Files)}, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: append(files, uintptr(pipes[2][1]), orderFD, starterFD),
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return "start its second stage", "/proc/self/exe", err
	}
	for _, fd := range []int{pipes[0][1], pipes[1][1], pipes[2][1]} {
		unix.Close(fd)
	}
	for i := range s.order.Files { // whoever has the other end of one must see the program's close
		unix.Close(firstFileFD + i)
	}
	s.stage = hear(pipes[2][0])
	s.output = copyOutput(s.order, pipes[0][0], pipes[1][0])
	if s.pidfd, err = process.Open(s.program); err == nil { // not reaped yet, so the number is its own
		s.id, err = process.Identify(s.program)
	}
	if err != nil {
		s.fail("hold on to it", "", err)
		return "", "", nil
	}
	s.send(report{Kind: reportForked, Program: s.id}.encode(), s.pidfd)
	return "", "", nil
}

// hear returns where all that comes from a pipe will be when it has ended.
func hear(fd int) <-chan []byte {
	said := make(chan []byte, 1)
	go func() { // ends with the process at the latest
		f := os.NewFile(uintptr(fd), "second stage")
		defer f.Close()
		text, _ := io.ReadAll(f)
		said <- text
	}()
	return said
}

// serve returns when the program, or its second stage, was reaped.
func (s *supervisor) serve() {
	for s.program != 0 {
		select {
		case said := <-s.stage:
			s.heard(said)
		case sig := <-s.signals:
			s.obey(sig)
		case <-s.children:
			s.reap()
		}
	}
	if s.stage != nil {
		s.heard(<-s.stage) // it is at its end, for only the second stage has the other
	}
}

// heard tells the starter what became of the second stage, by what that said: a byte when it has set up everything, and a report if it has failed.
func (s *supervisor) heard(said []byte) {
	s.stage = nil
	switch {
	case s.failed:
	case len(said) == 0:
		s.fail("set it up in its second stage, which ended first", "", syscall.ECHILD)
	case len(said) == 1:
		s.send(report{Kind: reportExecuted}.encode(), nil)
	default:
		s.failed = true
		s.send(said[1:], nil)
	}
}

// fail tells the starter that the program was not executed, and ends what there is of it.
func (s *supervisor) fail(step, path string, err error) {
	s.failed = true
	s.send(failed(step, path, err).encode(), nil)
	s.kill()
}

func (s *supervisor) obey(sig os.Signal) {
	if sig == syscall.SIGUSR2 {
		s.kill()
		return
	}
	unix.Kill(s.program, syscall.SIGTERM) // not reaped yet, so the number is its own
}

// reap takes the status of every child that has ended, and reports whether one is left. Without children there are no descendants: this process would
// have adopted them.
func (s *supervisor) reap() (left bool) {
	return process.Reap(func(pid int, status syscall.WaitStatus) {
		if pid == s.program {
			s.program, s.status = 0, status
		}
	})
}

// kill sends SIGKILL to everything that the program has started, and to the program.
func (s *supervisor) kill() {
	if s.group != "" {
		_ = s.group.kill() // a process may have left it, and be a descendant still
	}
	process.SignalDescendants(syscall.SIGKILL)
}

// finish ends what the program has left behind, and tells how it has ended.
func (s *supervisor) finish() {
	left := func() bool { return s.reap() || s.group.populated() }
	if left() {
		s.kill()
	}
	s.output.wait(outputWait)
	if !s.failed {
		s.send(report{Kind: reportEnded, Status: s.status, Stderr: s.output.lastLines()}.encode(), nil)
	}
	for pause := killInterval; left(); pause = min(2*pause, maxInterval) {
		s.kill()
		select {
		case <-s.children:
		case <-time.After(pause):
		}
	}
	if s.group != "" {
		s.group.vanish()
	}
	s.output.wait(lastOutputWait)
}

// send sends a report to the starter, with a pidfd if there is one. It does not wait, and a starter that is gone does not matter: the socket has room for all
// reports that there are.
func (s *supervisor) send(b []byte, pidfd *process.Handle) {
	if pidfd == nil {
		_ = unix.Sendmsg(starterFD, b, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		return
	}
	raw, _ := pidfd.SyscallConn()
	_ = raw.Control(func(fd uintptr) {
		_ = unix.Sendmsg(starterFD, b, unix.UnixRights(int(fd)), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	})
}
