// Package runner runs one container's processes and ties their life to its leases.
//
// A container is a command and all it starts, however daemonised. It ends when the command
// ends, when one of its leases is over, when the caller's context ends, and when the caller's
// process dies, even by SIGKILL. In each case nothing of it is left.
//
// # The init
//
// The command does not run under the caller directly, but under an init: this very program,
// run again with "fairlead-init" as its argv[0]. Importing the package is all it takes: the
// package's init function notices the name, does the init's work and exits, before main runs.
// The init functions of packages that Go initialises earlier do run in it; they should do
// nothing but prepare data, as they should in any program.
//
// The init is process 1 of a pid namespace, so that the kernel ends everything in the
// container with it. It has a mount namespace for its own /proc and, for an ordinary user, a
// user namespace with the same uid and gid. In such a user namespace supplementary groups
// still count but show as nobody's, and programs with a set-uid bit or file capabilities run
// without them.
//
// # The keeper
//
// Where namespaces are not permitted, Best falls back to a keeper: the same init without
// them. It adopts every orphan of the container (PR_SET_CHILD_SUBREAPER) and kills all its
// descendants until none is left. It cannot contain two things: a process that kills the keeper
// itself with SIGKILL, upon which only the command dies with it; and a process that the
// caller may not signal, such as a set-uid program, for which the keeper, and with it Run,
// waits instead.
//
// # What the command sees
//
// It has the caller's process group, terminal, umask and resource limits, and default signal
// dispositions. Go cannot pass on that a signal other than SIGHUP and SIGINT was ignored when
// the program began. It inherits standard input, output, error and Cmd.ExtraFiles, and no
// other descriptor.
package runner

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"github.com/fairlead-dev/fairlead/services/network"
)

// Contain says how strictly a container must hold its processes.
type Contain string

const (
	// Require demands namespaces; Prepare refuses where they are not permitted. The empty
	// Contain means the same.
	Require Contain = "require"
	// Best uses namespaces where they are permitted, and else a keeper. It costs the start of
	// one more short-lived process, which tries the namespaces out.
	Best Contain = "best"
)

const defaultGrace = 5 * time.Second

// Options say how a container is run. The zero value is ready to use.
type Options struct {
	// Contain is Require or Best; empty means Require.
	Contain Contain
	// Grace is the time from SIGTERM to SIGKILL when the container must end; 0 means 5 s, and
	// less than 0 means SIGKILL at once.
	Grace time.Duration
	// Reclaim, if it is not nil, is called when a lease of the container is lost, which one is not that was released or whose session an operator has closed: it takes the lease back, and
	// the container goes on with that. It has as long as Grace; if it fails the container is ended. The lease must be as it was, since the command knows its address. Witness is the
	// container's. See network.Reclaim. It may be called for several leases at the same time.
	Reclaim func(ctx context.Context, lost *network.Lease, witness *os.File) (*network.Lease, error)
	// Logger takes what an operator should know; nil discards it.
	Logger *slog.Logger
}

func (o Options) grace() time.Duration {
	return max(0, cmp.Or(o.Grace, defaultGrace))
}

func (o Options) logger() *slog.Logger {
	return cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
}

// Run runs cmd in a container with default Options and returns when the whole container is
// gone. It is Prepare, AddWitness of the container's Witness on every lease, and Container.Run,
// whose errors it returns.
func Run(ctx context.Context, cmd *exec.Cmd, leases ...*network.Lease) error {
	c, err := Prepare(cmd, Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	for _, lease := range leases {
		err := lease.AddWitness(ctx, c.Witness())
		if lost := lostLease(lease); lost != nil {
			return lost
		}
		if err != nil {
			return &WitnessError{Network: lease.Network, Err: err}
		}
	}
	return c.Run(ctx, leases...)
}
