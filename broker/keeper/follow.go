package keeper

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/internal/watch"
)

const (
	// statusWait is how long the kernel is asked for the exit status of an adopted program, which it tells once the keeper has reaped that.
	statusWait = 200 * time.Millisecond
	// askInterval is how often the kernel is asked for what it has no event for.
	askInterval = 2 * time.Millisecond
	// maxInterval is how far apart such questions get.
	maxInterval = time.Second
)

// launch starts the keeper's process.
func (k *Keeper) launch(c Config) error {
	order, err := orderOf(c).file()
	if err != nil {
		return &StartError{Step: "write down the order for the keeper", Errno: errnoOf(err)}
	}
	defer order.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return &StartError{Step: "make a socketpair", Errno: errnoOf(err)}
	}
	k.conn = os.NewFile(uintptr(fds[0]), "keeper")
	theirs := os.NewFile(uintptr(fds[1]), "keeper's starter")
	defer theirs.Close()
	k.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{keeperName, c.Program[0]}, Env: keeperEnvironment(), Dir: "/",
		Stdout: os.Stderr, Stderr: os.Stderr,
		ExtraFiles:  slices.Concat([]*os.File{order, theirs}, c.Files, c.Hold),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := k.cmd.Start(); err != nil {
		k.conn.Close()
		return &StartError{Step: "start its keeper", Path: k.cmd.Path, Errno: errnoOf(err)}
	}
	if k.keeper, err = process.Open(k.cmd.Process.Pid); err == nil { // not reaped yet, so the number is its own
		k.record.Keeper, err = process.Identify(k.cmd.Process.Pid)
	}
	if err != nil {
		k.cmd.Process.Kill()
		k.cmd.Wait()
		k.conn.Close()
		k.keeper.Close()
		return &StartError{Step: "hold on to its keeper", Errno: errnoOf(err)}
	}
	return nil
}

// keeperEnvironment returns what the Go runtime and the loader of the keeper need. One thread at a time does all that it has to do.
func keeperEnvironment() []string {
	env := []string{"GOMAXPROCS=1"}
	for _, v := range os.Environ() {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "GODEBUG", "GOTRACEBACK", "GORACE", "LD_LIBRARY_PATH":
			env = append(env, v)
		}
	}
	return env
}

// follow takes the reports of a keeper that was started here until it is gone, and reaps it.
func (k *Keeper) follow() {
	for {
		r, file, err := receive(k.conn)
		if err != nil { // and no file
			break
		}
		k.take(r, file)
	}
	if k.isClosed() {
		go k.cmd.Wait() // it may live for long, and is nobody else's
		return
	}
	k.conn.Close()
	k.cmd.Wait()
	k.answered(&StartError{Step: "start it under its keeper, which ended first", Errno: syscall.ECHILD})
	k.finish()
}

// take takes a report.
func (k *Keeper) take(r report, file *os.File) {
	defer func() {
		if file != nil {
			file.Close()
		}
	}()
	switch r.Kind {
	case reportForked:
		program, err := handle(r.Program, file)
		if err != nil {
			k.order(syscall.SIGUSR2)
			k.answered(&StartError{Step: "hold on to it", Errno: errnoOf(err)})
			return
		}
		file = nil
		k.program = program
		k.record.Program = r.Program
		k.record.Inode, _ = program.Inode()
		if k.recorded != nil {
			if err := k.recorded(k.record); err != nil {
				k.order(syscall.SIGUSR2)
				k.answered(err)
				return
			}
		}
		k.work.Go(k.rouse)
		_, _ = k.conn.Write([]byte{1}) // see mayRun; one that is gone needs no word
	case reportExecuted:
		k.answered(nil)
	case reportFailed:
		k.record.Cgroup = "" // the keeper has removed it, or it is another's
		k.answered(&StartError{Step: r.Step, Path: r.Path, Errno: r.Errno})
	case reportEnded:
		if k.program != nil {
			k.end(outcomeOf(r.Status, r.Stderr))
		}
	}
}

// reportWait is how long a keeper may take to tell of its program's end before it is roused.
const reportWait = 200 * time.Millisecond

// rouse has a keeper go on that somebody has stopped, when its program has ended: else nobody would be told.
func (k *Keeper) rouse() {
	if !k.await(k.program) {
		return
	}
	select {
	case <-k.ended:
	case <-k.closed:
	case <-time.After(reportWait):
		_ = k.keeper.Signal(syscall.SIGCONT)
	}
}

// handle returns a handle on the program by its pidfd, which it then owns, or by its number where none came for want of descriptors.
func handle(id process.ID, pidfd *os.File) (*process.Handle, error) {
	if pidfd == nil {
		return process.OpenID(id)
	}
	return process.FromFile(pidfd)
}

// answered tells Start what became of it. Only the first answer counts.
func (k *Keeper) answered(err error) {
	select {
	case k.answer <- err:
	default:
	}
}

// end notes how the program has ended.
func (k *Keeper) end(o Outcome) {
	k.outcome = o
	close(k.ended)
}

func (k *Keeper) hasEnded() bool {
	select {
	case <-k.ended:
		return true
	default:
		return false
	}
}

func (k *Keeper) isClosed() bool {
	select {
	case <-k.closed:
		return true
	default:
		return false
	}
}

// finish does what the keeper, which is gone, may have left undone because it was killed: the program dies by its death signal, and the rest by its cgroup.
func (k *Keeper) finish() {
	if k.program != nil && !k.hasEnded() {
		if !k.await(k.program) {
			return
		}
		k.end(k.status())
	}
	if k.record.Cgroup != "" && !cgroup(k.record.Cgroup).clear(k.closed) {
		return
	}
	close(k.gone)
}

// await returns true when a process is gone, and false when the Keeper is closed.
func (k *Keeper) await(h *process.Handle) bool {
	if h.Gone() {
		return true
	}
	gone := make(chan struct{})
	set, err := watch.New()
	if err == nil {
		defer set.Close()
		raw, _ := h.SyscallConn()
		_, err = set.Add(raw, watch.Process, func() { close(gone) })
	}
	if err != nil { // for want of descriptors
		return until(k.closed, h.Gone)
	}
	select {
	case <-gone:
		return true
	case <-k.closed:
		return false
	}
}

// until returns true when something holds, which is asked again and again, and false when done is closed.
func until(done <-chan struct{}, holds func() bool) bool {
	for pause := askInterval; !holds(); pause = min(2*pause, maxInterval) {
		select {
		case <-time.After(pause):
		case <-done:
			return false
		}
	}
	return true
}

// status returns how the program, which is gone, has ended by the kernel's word. It waits a little for that to be known.
func (k *Keeper) status() Outcome {
	for late := time.Now().Add(statusWait); ; time.Sleep(askInterval) {
		if status, ok := k.program.ExitStatus(); ok {
			return outcomeOf(status, nil)
		}
		if time.Now().After(late) {
			return Outcome{}
		}
	}
}

// A Record is what can be written down of a program and its keeper, for a later process to Adopt them.
type Record struct {
	// Keeper and Program are the two processes.
	Keeper  process.ID `json:"keeper"`
	Program process.ID `json:"program"`
	// Inode is that of the program's pidfd where the kernel has such, see process.Handle.Inode. Else 0.
	Inode uint64 `json:"inode,omitempty"`
	// Cgroup is the folder of the program's cgroup, or empty.
	Cgroup string `json:"cgroup,omitempty"`
}

// Adopt returns the program and the keeper that an earlier process has started. It is not their parent, so how the program ends is known
// only where the kernel tells (Linux 6.15 and later), and without its last lines.
//
// The error wraps process.ErrGone if both are gone. What the program has left in its cgroup is killed then.
// If only the program is gone, Ended is closed already, with an unknown outcome. If only the keeper is gone, Gone follows the program's end, and with no cgroup
// nobody looks for what else it has started.
func Adopt(r Record) (*Keeper, error) {
	k := newKeeper()
	k.record = r
	var errKeeper, errProgram error
	k.keeper, errKeeper = process.OpenID(r.Keeper)
	if k.program, errProgram = process.OpenID(r.Program); errProgram == nil {
		errProgram = k.checkInode()
	}
	goneKeeper, goneProgram := errors.Is(errKeeper, process.ErrGone), errors.Is(errProgram, process.ErrGone)
	var err error
	switch {
	case goneKeeper && goneProgram:
		if r.Cgroup != "" {
			cgroup(r.Cgroup).clear(after(giveUp))
		}
		err = errProgram
	case errKeeper != nil && !goneKeeper:
		err = errKeeper
	case errProgram != nil && !goneProgram:
		err = errProgram
	}
	if err != nil {
		k.Close()
		return nil, fmt.Errorf("adopt a program: %w", err)
	}
	if k.program == nil {
		k.end(Outcome{})
	}
	k.work.Go(k.watch)
	return k, nil
}

// checkInode lets go of the program if its pidfd has another inode than the recorded one. Without inodes its start time has to do.
func (k *Keeper) checkInode() error {
	inode, ok := k.program.Inode()
	if !ok || k.record.Inode == 0 || inode == k.record.Inode {
		return nil
	}
	k.program.Close()
	k.program = nil
	return fmt.Errorf("open process %d: %w: its pidfd has another inode", k.record.Program.PID, process.ErrGone)
}

// watch waits for what was adopted to end.
func (k *Keeper) watch() {
	if k.program != nil {
		if !k.await(k.program) {
			return
		}
		k.end(k.status())
	}
	if k.keeper != nil && !k.await(k.keeper) {
		return
	}
	k.finish()
}

// after returns a channel that is closed after a while.
func after(d time.Duration) <-chan struct{} {
	c := make(chan struct{})
	time.AfterFunc(d, func() { close(c) })
	return c
}
