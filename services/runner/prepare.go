package runner

import (
	"cmp"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// prepareTime bounds the start of the init, which takes some 10 ms.
const prepareTime = 30 * time.Second

// sharedNamespaces are the clone flags that a caller may add to a container's own.
const sharedNamespaces = unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP

// Prepare starts the init of a container for cmd. Nothing of cmd runs before Container.Run;
// until then the caller can give Witness to a lease and set the container's network up. Every
// prepared container must be Run or Closed.
//
// cmd is as for exec.Cmd.Start and may be used for this one container only; it is not changed. Its Env
// may still be set until Run, to what the leases say.
// Its Stdin, Stdout, Stderr and WaitDelay work as in os/exec, but the pipes of StdoutPipe and StderrPipe
// are closed as soon as the container is gone: for all of the output give a Writer or a File.
// In SysProcAttr only Cloneflags may be set, to the network, UTS, IPC and cgroup namespaces
// that the container shall have beside its own. A cmd of exec.CommandContext is refused: the
// context belongs to Run.
//
// A *StartError says that cmd was not found, a *ContainError that the system does not permit
// what Options.Contain demands.
func Prepare(cmd *exec.Cmd, o Options) (*Container, error) {
	if err := check(cmd); err != nil {
		return nil, err
	}
	namespaces := mode{Namespaces: true, User: os.Geteuid() != 0}
	switch o.Contain {
	case "", Require:
		return prepare(cmd, o, namespaces)
	case Best:
	default:
		return nil, fmt.Errorf("containment %q is unknown: use %q or %q", o.Contain, Require, Best)
	}
	// A failed start uses up cmd's descriptors, so the namespaces are tried out without it.
	trial, err := prepare(&exec.Cmd{Path: "/", SysProcAttr: cmd.SysProcAttr}, o, namespaces)
	if err == nil {
		trial.Close()
		return prepare(cmd, o, namespaces)
	}
	refusal, ok := errors.AsType[*ContainError](err)
	if !ok {
		return nil, err
	}
	o.logger().Debug("the command runs under a keeper, without namespaces", "err", refusal)
	c, err := prepare(cmd, o, mode{})
	if err != nil {
		return nil, err
	}
	c.contained = fmt.Errorf("not contained: a process that kills the keeper %d, or that this user may not signal: %w", c.PID(), refusal)
	return c, nil
}

// check refuses what the container would not honour.
func check(cmd *exec.Cmd) error {
	switch {
	case cmd.Process != nil:
		return errors.New("prepare the command: it has been started already")
	case cmd.Cancel != nil:
		return errors.New("prepare the command: it has a context of its own (exec.CommandContext): give the context to Run")
	case cmd.Err != nil:
		return &StartError{Path: cmd.Path, Err: cmd.Err}
	case cmd.Path == "":
		return errors.New("prepare the command: it has no path")
	case slices.Contains(cmd.ExtraFiles, nil):
		return errors.New("prepare the command: one of its ExtraFiles is nil")
	}
	if cmd.SysProcAttr == nil {
		return nil
	}
	attr := *cmd.SysProcAttr
	attr.Cloneflags &^= sharedNamespaces
	if !reflect.ValueOf(attr).IsZero() {
		return errors.New("prepare the command: of SysProcAttr only Cloneflags with NEWNET, NEWUTS, NEWIPC and NEWCGROUP can be honoured")
	}
	return nil
}

// prepare starts an init in the given mode and waits until it is ready.
func prepare(cmd *exec.Cmd, o Options, m mode) (*Container, error) {
	ours, theirs, err := connection()
	if err != nil {
		return nil, err
	}
	c := &Container{
		options: o,
		path:    cmd.Path,
		environ: cmd.Environ,
		mode:    m,
		init:    initCommand(cmd, m, theirs),
		conn:    ours,
		encoder: gob.NewEncoder(ours),
		reports: make(chan report, 4),
		started: make(chan struct{}),
		ended:   make(chan struct{}),
		gone:    make(chan struct{}),
	}
	result := make(chan error, 1)
	c.tasks.Go(func() { c.hold(result) })
	err = <-result
	theirs.Close()
	if err != nil {
		ours.Close()
		c.tasks.Wait()
		return nil, c.prepareError("start the init", err)
	}
	c.tasks.Go(c.listen)
	conf := config{Path: cmd.Path, Args: cmd.Args, Dir: cmd.Dir, ExtraFiles: len(cmd.ExtraFiles), Mode: m}
	if len(conf.Args) == 0 {
		conf.Args = []string{cmd.Path}
	}
	if err := c.ready(conf); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// hold starts the init and waits for its end, all on one thread: the death signal that the
// init asks for follows the thread that forked, so that thread must last as long as the init.
func (c *Container) hold(result chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.init.Start()
	if err == nil {
		if c.witness, err = pidfd(c.init.Process); err != nil {
			c.init.Process.Kill()
			c.init.Wait()
		}
	}
	result <- err
	if err != nil {
		return
	}
	c.initErr = c.init.Wait()
	close(c.gone)
}

// pidfd returns a copy of the pidfd of a child that was not waited for.
func pidfd(child *os.Process) (*os.File, error) {
	var fd int
	var err error
	handleErr := child.WithHandle(func(handle uintptr) {
		fd, err = unix.FcntlInt(handle, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err := cmp.Or(handleErr, err); err != nil {
		return nil, fmt.Errorf("take its pidfd: %w", err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// listen takes the init's reports until it is gone or the connection is closed here.
func (c *Container) listen() {
	defer close(c.reports)
	decoder := gob.NewDecoder(c.conn)
	for {
		var r report
		if err := decoder.Decode(&r); err != nil {
			return
		}
		c.reports <- r
	}
}

// ready maps the user, sends the config and waits for the init's answer.
func (c *Container) ready(conf config) error {
	if c.mode.User {
		if err := mapUser(c.PID()); err != nil {
			return c.prepareError("map the user", err)
		}
	}
	c.conn.SetWriteDeadline(time.Now().Add(prepareTime))
	sendErr := c.encoder.Encode(conf)
	select {
	case r, ok := <-c.reports:
		switch {
		case !ok:
			return fmt.Errorf("prepare the container: its init ended before it was ready (send the command: %v)", sendErr)
		case r.Kind != reportReady:
			return c.prepareError(r.Step, r.Errno)
		}
		return nil
	case <-time.After(prepareTime):
		c.init.Process.Kill() // it may not read the end of file either, and contains nothing yet
		return fmt.Errorf("prepare the container: its init was not ready within %v: look for a package whose init function waits", prepareTime)
	}
}

func (c *Container) prepareError(step string, err error) error {
	if c.mode.Namespaces && refused(err) {
		return &ContainError{Step: step, Err: err}
	}
	return fmt.Errorf("prepare the container: %s: %w", step, err)
}

// connection returns the two ends of the socketpair between caller and init.
func connection() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("prepare the container: make a socketpair: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "container's caller")
	// Only then does os.File honour deadlines, and Close end a Read.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		theirs.Close()
		unix.Close(fds[0])
		return nil, nil, fmt.Errorf("prepare the container: set a socket non-blocking: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "container's init"), theirs, nil
}

// initCommand returns the command that runs the init: cmd with its standard streams and
// pipes, but this program as its file.
func initCommand(cmd *exec.Cmd, m mode, conn *os.File) *exec.Cmd {
	init := *cmd
	init.Path = "/proc/self/exe"
	init.Args = []string{initName, strconv.Itoa(3 + len(cmd.ExtraFiles))}
	init.Env = initEnvironment()
	init.Dir = ""
	init.ExtraFiles = append(slices.Clone(cmd.ExtraFiles), conn)
	attr := &syscall.SysProcAttr{}
	if cmd.SysProcAttr != nil {
		attr.Cloneflags = cmd.SysProcAttr.Cloneflags
	}
	if m.Namespaces {
		attr.Cloneflags |= unix.CLONE_NEWPID | unix.CLONE_NEWNS
	}
	if m.User {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	init.SysProcAttr = attr
	return &init
}

// mapUser gives this user's uid and gid to the user namespace of the init, see
// user_namespaces(7). It stands here because os/exec, which can do it too, leaves a pipe open
// each time the kernel refuses a user namespace.
func mapUser(pid int) error {
	for _, file := range []struct{ name, text string }{
		{"uid_map", fmt.Sprintf("%[1]d %[1]d 1", os.Geteuid())},
		{"setgroups", "deny"},
		{"gid_map", fmt.Sprintf("%[1]d %[1]d 1", os.Getegid())},
	} {
		f, err := os.OpenFile(fmt.Sprintf("/proc/%d/%s", pid, file.name), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(file.text)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// initEnvironment returns what the Go runtime and the loader of the init need. The rest of the
// caller's environment would show in the container as that of process 1.
func initEnvironment() []string {
	env := []string{}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "GODEBUG", "GOTRACEBACK", "GORACE", "GOCOVERDIR", "LD_LIBRARY_PATH":
			env = append(env, v)
		}
	}
	return env
}
