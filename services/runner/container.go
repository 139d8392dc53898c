package runner

import (
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// sendTime bounds one order to the init, which reads at once unless somebody has stopped it.
const sendTime = time.Second

// killTime is how long the init may take to act on orderKill before it is killed itself.
const killTime = 2 * time.Second

// A Container is one command under its init. Its states:
//
//	prepared ── Run ──▶ running ── the command ends, or its end is ordered ──▶ ending ──▶ gone
//	    └────────────── Close, or Run with a lease or context that is over ─────────────────▲
//
// Its methods may be called from any goroutine.
type Container struct {
	options   Options
	path      string
	environ   func() []string // the command's
	mode      mode
	contained error
	init      *exec.Cmd
	witness   *os.File // a pidfd of init
	conn      *os.File
	encoder   *gob.Encoder // safe for concurrent use
	reports   chan report  // holds all that an init ever sends; closed at its end of file
	used      atomic.Bool  // Run was called
	started   chan struct{}
	ended     chan struct{} // the command has ended
	gone      chan struct{} // the init, and with it the container, is gone
	initErr   error         // how the init ended; valid once gone is closed
	tasks     sync.WaitGroup
}

// PID returns the process id of the init in the caller's pid namespace.
func (c *Container) PID() int { return c.init.Process.Pid }

// Witness returns a pidfd of the init, which is the last of the container to go: what
// network.Request.Witness and Lease.AddWitness take. It is the container's, open until Close or Run returns.
func (c *Container) Witness() *os.File { return c.witness }

// Contained returns nil if the kernel holds every process of the container. Under a keeper it
// returns what the container cannot contain; that wraps the *ContainError that says why.
func (c *Container) Contained() error { return c.contained }

// Close ends the container at once with SIGKILL, and returns when it is gone. It is for a
// container that is not run after all; after Run it does nothing.
func (c *Container) Close() {
	c.kill()
	<-c.gone
	c.tasks.Wait()
	c.witness.Close()
}

// kill makes the init end everything without another word. A keeper must live, and run, to
// do it.
func (c *Container) kill() {
	c.conn.Close()
	if c.mode.Namespaces {
		c.init.Process.Kill()
	} else {
		c.init.Process.Signal(syscall.SIGCONT)
	}
}

// Signal sends sig, a syscall.Signal, to the command itself. Before the command has started it
// returns an error, and after it has ended os.ErrProcessDone.
func (c *Container) Signal(sig os.Signal) error {
	s, ok := sig.(syscall.Signal)
	if !ok {
		return fmt.Errorf("signal the command: %v is not a syscall.Signal", sig)
	}
	select {
	case <-c.ended:
		return os.ErrProcessDone
	case <-c.gone:
		return os.ErrProcessDone
	default:
	}
	select {
	case <-c.started:
	default:
		return errors.New("signal the command: it has not started yet")
	}
	if err := c.send(order{Kind: orderSignal, Signal: s}); err != nil {
		return fmt.Errorf("signal the command: %w", err)
	}
	return nil
}

func (c *Container) send(o order) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	return c.encoder.Encode(o)
}

// Run lets the command run, with Environment(leases) added to its environment, and returns when the whole container is gone. It can
// be called once.
//
// When one of leases is over, and is not reclaimed (Options.Reclaim), or ctx ends, the container is ended: SIGTERM (and SIGCONT, for
// what is stopped) to everything in it, then SIGKILL when Options.Grace is over.
// When the command ends, what it leaves behind is killed at once.
//
// Run returns nil if the command ended with status 0, and else an *ExitError; a *StartError if
// the command could not be executed; a *LostError if a lease was over; and if ctx has ended, an
// error that wraps its cause and, if there is one, the *ExitError. See ExitStatus.
func (c *Container) Run(ctx context.Context, leases ...*network.Lease) error {
	if c.used.Swap(true) {
		return errors.New("run the container: it was run already")
	}
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer c.Close()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	leases = slices.Clone(leases)
	for i, lease := range leases {
		if lost := lostLease(lease); lost != nil {
			var err error
			if lease, err = c.reclaim(ctx, lease); err != nil {
				return err
			}
			leases[i] = lease
		}
		watchers.Go(func() { c.keepLease(ctx, lease, end) })
	}
	if ctx.Err() != nil {
		return causeError(context.Cause(ctx), nil)
	}
	f := follower{Container: c}
	f.sendErr = c.send(order{Kind: orderStart, Env: append(c.environ(), Environment(leases)...)})
	f.follow(ctx)
	<-c.gone
	return f.result()
}

// keepLease calls end when a lease is over and is not reclaimed. It returns then, and when ctx ends or the container is gone.
func (c *Container) keepLease(ctx context.Context, lease *network.Lease, end context.CancelCauseFunc) {
	for {
		select {
		case <-lease.Done():
		case <-ctx.Done():
			return
		case <-c.gone:
			return
		}
		again, err := c.reclaim(ctx, lease)
		if err != nil {
			end(err)
			return
		}
		lease = again
	}
}

// reclaim takes a lease back that is over, or says why it is lost.
func (c *Container) reclaim(ctx context.Context, lease *network.Lease) (*network.Lease, error) {
	if c.options.Reclaim == nil || onPurpose(lease.Err()) {
		return nil, lostLease(lease)
	}
	c.options.logger().Info("the network is lost; its lease is being reclaimed", "err", lease.Err())
	grace := c.options.grace()
	ctx, cancel := context.WithTimeoutCause(ctx, grace, fmt.Errorf("not within the grace of %v: %w", grace, context.DeadlineExceeded))
	defer cancel()
	again, err := c.options.Reclaim(ctx, lease, c.witness)
	if err != nil {
		return nil, &LostError{Network: lease.Network, Err: fmt.Errorf("%w, and it was not taken back: %w", lease.Err(), err)}
	}
	return again, nil
}

// onPurpose reports whether a lease is over because somebody wanted that: it was released, or an operator has closed its session, which alone ends by the broker.
func onPurpose(over error) bool {
	end, ok := errors.AsType[*wire.Error](over)
	return errors.Is(over, network.ErrReleased) || ok && end.Origin == wire.Broker && end.Code == wire.Interrupted
}

// lostLease returns a *LostError if lease is over.
func lostLease(lease *network.Lease) error {
	select {
	case <-lease.Done():
		return &LostError{Network: lease.Network, Err: lease.Err()}
	default:
		return nil
	}
}

// A follower is one Run from the start order to the end of the init's reports.
type follower struct {
	*Container
	sendErr error
	failed  *report             // a start that failed
	status  *syscall.WaitStatus // how the command ended
	cause   error               // why the end was ordered
}

// follow takes reports, and orders the end of the container when ctx ends.
func (f *follower) follow(ctx context.Context) {
	done := ctx.Done()
	var escalate <-chan time.Time
	killing := false
	for {
		select {
		case r, ok := <-f.reports:
			if !ok {
				return
			}
			f.take(r)
		case <-done:
			done = nil
			if f.status == nil {
				f.cause = context.Cause(ctx)
			}
			f.options.logger().Info("the container is being ended", "err", context.Cause(ctx))
			f.send(order{Kind: orderTerminate})
			escalate = time.After(f.options.grace())
		case <-escalate:
			if killing {
				f.kill()
				escalate = nil
				continue
			}
			killing = true
			f.options.logger().Warn("processes of the container outlived the grace; they are killed", "err", context.Cause(ctx))
			f.send(order{Kind: orderKill})
			escalate = time.After(killTime)
		}
	}
}

func (f *follower) take(r report) {
	switch r.Kind {
	case reportStarted:
		close(f.started)
	case reportEnded:
		f.status = &r.Status
		close(f.ended)
	default:
		f.failed = &r
	}
}

// result returns what Run returns; the container is gone.
func (f *follower) result() error {
	switch {
	case f.failed != nil && f.failed.Kind == reportNotStarted:
		return &StartError{Path: f.path, Err: f.failed.Errno}
	case f.failed != nil:
		return fmt.Errorf("start the command: %s: %w", f.failed.Step, f.failed.Errno)
	case f.status != nil && f.cause != nil:
		return causeError(f.cause, exitError(*f.status))
	case f.status != nil:
		return cmp.Or(exitError(*f.status), f.streamError())
	case f.cause != nil:
		return causeError(f.cause, nil)
	}
	return fmt.Errorf("the container's init ended before the command: %w", errors.Join(f.sendErr, f.initErr))
}

// streamError returns what went wrong in copying from or to a stream of the command.
func (f *follower) streamError() error {
	if _, ok := errors.AsType[*exec.ExitError](f.initErr); ok {
		return nil
	}
	return f.initErr
}

func causeError(cause, exit error) error {
	if lost, ok := cause.(*LostError); ok {
		return lost
	}
	if exit != nil {
		return fmt.Errorf("the container was ended: %w (%w)", cause, exit)
	}
	return fmt.Errorf("the container was ended: %w", cause)
}
