// Package keeper runs a program under a keeper: a process that adopts whatever the program leaves behind, writes down what it says, ends it all, and
// outlives the broker that started it.
//
// The keeper is this very program, run again with "fairlead-keeper" as its argv[0]. Importing the package is all it takes: the package's init function
// notices the name, does the work and exits, before main runs. The keeper starts the program in the same way through "fairlead-exec", which sets up what the
// program inherits and then becomes it.
//
// The keeper is the sub-reaper of all that the program starts (PR_SET_CHILD_SUBREAPER, see prctl(2)) and the last of it to go: when the program has ended it
// kills its descendants until none is left, and exits. If the keeper itself is killed with SIGKILL, the program dies with it (PR_SET_PDEATHSIG). What else the
// program has started is then killed where there is a cgroup, and else left alone. A program that this process may not signal, as one with a set-uid bit that
// was executed without a Credential, is waited for.
package keeper

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// A Config says how a program is run.
type Config struct {
	// Program is what is executed, a path as execve(2) takes it, and its arguments, of which the first is that path again.
	Program []string
	// Environment is all of the program's environment, as "name=value".
	Environment []string
	// Dir is the program's working directory. Empty: /.
	Dir string
	// Credential is whom the program runs as. It then cannot gain privileges (PR_SET_NO_NEW_PRIVS). Nil: whom the caller runs as.
	Credential *syscall.Credential
	// Umask is the program's umask, see umask(2).
	Umask uint32
	// Nice is the program's nice value, -20 to 19, see setpriority(2). 0: the caller's.
	Nice int
	// Limits are the resource limits that the program does not have from the caller.
	Limits []Limit
	// Stdout and Stderr are where what the program writes there goes. Zero: to the log.
	Stdout, Stderr Output
	// Log is the absolute path of the program's own log. At 10 MiB it becomes LOG.1, and that LOG.2. Empty: what would go there is dropped.
	Log string
	// Cgroup is the folder of a cgroup (v2) of the program's own. It must not be there: the keeper makes and removes it. See Cgroups. Empty: none.
	Cgroup string
	// Files are what the program inherits, from descriptor 3 on. They stay the caller's, too, which may close them after Start.
	Files []*os.File
	// Hold are files that the keeper keeps open until it exits, and that the program does not inherit. They stay the caller's, too.
	Hold []*os.File
	// Recorded is called with what Adopt needs, so that it is written down, before the program is executed. If the caller dies before it has returned, the
	// program is never executed, and neither if it fails: none runs of which nobody knows. It is called once, on another goroutine, and Start waits for it. The
	// start may still fail after it. Nil: nothing is called.
	Recorded func(Record) error `json:"-"`
}

// A Limit is a resource limit as setrlimit(2) takes it.
type Limit struct {
	// Resource is one of the RLIMIT constants.
	Resource int
	// Soft and Hard are in the resource's own unit; ^uint64(0) is RLIM_INFINITY.
	Soft, Hard uint64
}

// An Output is where what a program writes goes. What cannot be written is dropped, and counted in the next line that can.
type Output struct {
	// Path is the absolute path of a file that is appended to and made with mode 0640. No link is followed, and the program is not started if others than root and this
	// process's user can write one of the folders on the way: the error names it.
	Path string
	// Inherit means the caller's own standard error.
	Inherit bool
}

// A Keeper is a program under its keeper, as its starter or adopter sees it:
//
//	running ── the program ends ──▶ Ended ── all it has started is gone ──▶ Gone
//
// All methods may be called at any time by any goroutine.
type Keeper struct {
	cmd     *exec.Cmd       // of the keeper's process; nil: adopted
	conn    *os.File        // the keeper's reports; nil: adopted
	keeper  *process.Handle // nil: it was gone when the program was adopted
	program *process.Handle // nil: not executed yet, or gone when the keeper was adopted; set before answer or Adopt tells
	record  Record          // complete when program is set

	recorded func(Record) error // is told of the record; nil: nobody is

	answer  chan error // has room for what became of the start; nil: executed
	outcome Outcome    // set before ended is closed
	ended   chan struct{}
	gone    chan struct{}
	closed  chan struct{}
	close   sync.Once
	work    sync.WaitGroup // its goroutine
}

// giveUp is how long a keeper may take to end a start that has been given up, before it is killed itself.
const giveUp = time.Second

// Start runs a program, and returns when it was executed. If it cannot be, the error is a *StartError, and nothing is left of it. When ctx ends first, the
// start is given up and the error wraps that of ctx. After that ctx does not matter.
//
// The process of the keeper is reaped by a goroutine of the Keeper's.
func Start(ctx context.Context, c Config) (*Keeper, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start a program: %w", err)
	}
	if len(c.Program) == 0 {
		return nil, &StartError{Step: "execute a program without a name", Errno: syscall.EINVAL}
	}
	k := newKeeper()
	k.record.Cgroup = c.Cgroup
	k.recorded = c.Recorded
	if err := k.launch(c); err != nil {
		return nil, err
	}
	k.work.Go(k.follow)
	var err error
	select {
	case err = <-k.answer:
	case <-ctx.Done():
		err = fmt.Errorf("start %s: %w", c.Program[0], ctx.Err())
		k.endKeeper()
	}
	if err != nil {
		<-k.gone
		k.Close()
		return nil, err
	}
	return k, nil
}

func newKeeper() *Keeper {
	return &Keeper{answer: make(chan error, 1), ended: make(chan struct{}), gone: make(chan struct{}), closed: make(chan struct{})}
}

// endKeeper has the keeper end a start, and ends the keeper if it does not. An order that comes before the keeper listens is lost, so it comes again.
func (k *Keeper) endKeeper() {
	ended := until(after(giveUp), func() bool {
		k.order(syscall.SIGUSR2)
		return k.keeper.Gone()
	})
	if !ended {
		k.order(syscall.SIGKILL)
	}
}

// order sends a signal to the keeper, also if somebody has stopped it. A keeper that is gone needs no orders.
func (k *Keeper) order(sig syscall.Signal) {
	_ = k.keeper.Signal(sig)
	_ = k.keeper.Signal(syscall.SIGCONT)
}

// Record returns what Adopt needs.
func (k *Keeper) Record() Record { return k.record }

// Program returns a handle on the program. It is the Keeper's, and closed by Close. It is nil if only the keeper was left when it was adopted. The number
// of a program that ended at once may not be known to the handle: Record has it.
func (k *Keeper) Program() *process.Handle { return k.program }

// Ended returns a channel that is closed when the program has ended. What the program wrote before has been written down by then.
func (k *Keeper) Ended() <-chan struct{} { return k.ended }

// Outcome returns how the program has ended. Before Ended it is the zero Outcome.
func (k *Keeper) Outcome() Outcome {
	select {
	case <-k.ended:
		return k.outcome
	default:
		return Outcome{}
	}
}

// Gone returns a channel that is closed when nothing is left of the program, of all it has started and of the keeper.
func (k *Keeper) Gone() <-chan struct{} { return k.gone }

// Terminate sends SIGTERM to the program, and SIGCONT, for one that is stopped. The error wraps process.ErrGone if it has ended and was reaped.
func (k *Keeper) Terminate() error {
	if k.program == nil {
		return fmt.Errorf("terminate the program: %w", process.ErrGone)
	}
	if err := k.program.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	_ = k.program.Signal(syscall.SIGCONT)
	return nil
}

// Kill sends SIGKILL to the program and all that it has started, however daemonised, and does not wait: Gone follows.
func (k *Keeper) Kill() {
	if k.keeper != nil {
		k.order(syscall.SIGUSR2)
	}
	if k.record.Cgroup != "" {
		_ = cgroup(k.record.Cgroup).kill() // the keeper does it, too
	}
	if k.program != nil && (k.keeper == nil || k.keeper.Gone()) {
		_ = k.program.Signal(syscall.SIGKILL)
	}
}

// Close lets go of the program and its keeper, which live on. Ended and Gone are not closed after that. Of a keeper that was started by this process, and lives, one
// goroutine stays, which reaps it. Only the first call does anything.
func (k *Keeper) Close() {
	k.close.Do(func() {
		close(k.closed)
		if k.conn != nil {
			k.conn.Close()
		}
		k.work.Wait()
		k.keeper.Close()
		k.program.Close()
	})
}
