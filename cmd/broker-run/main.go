// Command broker-run runs a command in a container that leases an address, and ends it when the address's network is lost for good.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/runner"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const usage = `broker-run runs a command in a container of its own, with an address for as long as it lives.

usage:
  broker-run [flags] -- COMMAND [ARG ...]

It leases an address on each --network and runs COMMAND with FAIRLEAD_ADDRESS, FAIRLEAD_GATEWAY, FAIRLEAD_MAC,
FAIRLEAD_NETWORK and FAIRLEAD_HOSTNAME set, and FAIRLEAD_ADDRESS_2 and so on for further networks. Of a network with both
families there are two addresses, with a blank between them, and likewise gateways.

When a network is lost, it ends COMMAND and all it started; with --on-loss=reclaim only if it cannot take its lease back within
--grace, or if an operator has closed its session. Signals are passed on to COMMAND, which may take its time. When broker-run
itself is killed, they go with it, and the address is free again once the last of them is gone.

flags:
`

const after = `
exit codes: COMMAND's own, 128+n if signal n ended it, 126 it cannot be run, 127 it was not found,
69 a network was lost, 125 broker-run itself failed, 2 usage

example:
  broker-run --network default --hostname web -- sh -c 'echo $FAIRLEAD_ADDRESS; exec sleep 60'
`

// Exit codes of broker-run's own; those of the command are runner.ExitStatus's.
const (
	exitOK    = 0
	exitUsage = 2
)

// What --on-loss may be.
const (
	lossTerminate = "terminate"
	lossReclaim   = "reclaim"
)

// A signaled is the signal that ended broker-run before the command ran.
type signaled syscall.Signal

func (s signaled) Error() string { return syscall.Signal(s).String() }

// A run is one run of the command.
type run struct {
	socket   string
	networks []string
	hostname string
	grace    time.Duration
	contain  string
	onLoss   string
	timeout  time.Duration
	log      *cli.LogFlags
}

func main() {
	signal.Ignore(syscall.SIGPIPE) // an error that nobody reads changes no exit code; the command has its own
	os.Exit(runMain(os.Args[1:]))
}

func runMain(args []string) int {
	var r run
	flags := pflag.NewFlagSet("broker-run", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.SetInterspersed(false)
	flags.StringVar(&r.socket, "socket", "", "path of the broker's socket (default: $FAIRLEAD_SOCKET, else that of this user)")
	flags.StringArrayVar(&r.networks, "network", []string{network.DefaultNetwork}, "`NAME` of a network to lease an address on; may be given more than once")
	flags.StringVar(&r.hostname, "hostname", "", "hostname to lease on each network")
	flags.StringVar(&r.onLoss, "on-loss", lossTerminate, "what to do when a network is lost: terminate, or reclaim: keep the container, and take the lease back within --grace")
	flags.DurationVar(&r.grace, "grace", 5*time.Second, "from SIGTERM to SIGKILL, when the container has to end because a network is lost, and how long taking its lease back may take")
	flags.StringVar(&r.contain, "contain", string(runner.Require), "require: refuse to start without namespaces; best: do what can be done")
	flags.DurationVar(&r.timeout, "timeout", 30*time.Second, "how long to wait for the broker and the leases; after 1s it says for which")
	r.log = cli.AddLogFlags(flags, slog.LevelWarn)
	err := flags.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		fmt.Print(usage, flags.FlagUsages(), after)
		return exitOK
	}
	if err == nil {
		err = r.check(flags.Args())
	}
	if err != nil {
		cli.Fail(os.Stderr, "broker-run", err, "try 'broker-run --help'")
		return exitUsage
	}
	err = r.run(flags.Args())
	if sig, ok := errors.AsType[signaled](err); ok {
		return 128 + int(sig)
	}
	if _, own := errors.AsType[*runner.ExitError](err); err != nil && !own { // the command says itself what was wrong
		cli.Fail(os.Stderr, "broker-run", err, "")
	}
	return runner.ExitStatus(err)
}

// check checks what was asked for.
func (r *run) check(command []string) error {
	switch {
	case len(command) == 0:
		return errors.New("no command to run")
	case r.contain != string(runner.Require) && r.contain != string(runner.Best):
		return fmt.Errorf("--contain %q: want require or best", r.contain)
	case r.onLoss != lossTerminate && r.onLoss != lossReclaim:
		return fmt.Errorf("--on-loss %q: want terminate or reclaim", r.onLoss)
	case r.grace <= 0 || r.timeout <= 0:
		return errors.New("--grace and --timeout: want more than 0")
	case len(r.networks) == 0:
		return errors.New("--network: want at least one")
	}
	if _, err := network.CanonicalHostname(r.hostname); err != nil {
		return fmt.Errorf("--hostname: %w", err)
	}
	seen := map[string]bool{}
	for _, n := range r.networks {
		if err := network.CheckNetwork(n); err != nil {
			return fmt.Errorf("--network: %w", err)
		}
		if seen[n] {
			return fmt.Errorf("--network %s is given twice", n)
		}
		seen[n] = true
	}
	return nil
}

// run runs the command from its blocked init to its end.
func (r *run) run(command []string) error {
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, runner.Signals()...) // before anything is started, so that none is missed
	defer signal.Stop(signals)

	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	var open sessions
	defer open.close()
	options := runner.Options{Contain: runner.Contain(r.contain), Grace: r.grace, Logger: r.log.Logger()}
	if r.onLoss == lossReclaim {
		options.Reclaim = func(ctx context.Context, lost *network.Lease, witness *os.File) (*network.Lease, error) {
			return r.reclaim(ctx, lost, witness, &open)
		}
	}
	container, err := runner.Prepare(cmd, options)
	if err != nil {
		return err
	}
	defer container.Close()
	if err := container.Contained(); err != nil {
		fmt.Fprintf(os.Stderr, "broker-run: %v\n", err)
	}
	leases, err := r.lease(container.Witness(), &open, signals)
	if err != nil {
		return err
	}
	var forwarding sync.WaitGroup
	forwarding.Go(func() { container.Forward(signals) })
	err = container.Run(context.Background(), leases...)
	forwarding.Wait()
	return err
}

// sayWaiting says on stderr what is waited for, if it takes more than a moment, until stop is called.
func (r *run) sayWaiting(what string) (stop func()) {
	t := time.AfterFunc(time.Second, func() {
		fmt.Fprintf(os.Stderr, "broker-run: waiting for %s, up to %v in all\n", what, r.timeout)
	})
	return func() { t.Stop() }
}

// lease opens a session for each network and allocates on it. If one fails, the others are let go by closing their sessions.
func (r *run) lease(witness *os.File, open *sessions, signals <-chan os.Signal) (leases []*network.Lease, err error) {
	ctx, stop := interruptible(signals)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout, fmt.Errorf("not within --timeout %v: %w", r.timeout, context.DeadlineExceeded))
	defer cancel()
	defer func() {
		if sig, ok := errors.AsType[signaled](context.Cause(ctx)); ok && err != nil {
			err = sig
		}
	}()
	for _, name := range r.networks {
		s, l, err := r.leaseOn(ctx, name, witness)
		if err != nil {
			return leases, err
		}
		open.add(s)
		leases = append(leases, l)
	}
	return leases, nil
}

// leaseOn opens a session and allocates on it. One that is lost before it has the lease is of no use, and what was recorded for it goes with the next request: so it is
// done again on a new one.
func (r *run) leaseOn(ctx context.Context, name string, witness *os.File) (*client.Session, *network.Lease, error) {
	path, _ := socket.Path(r.socket) // Dial says what is wrong with it
	for {
		done := r.sayWaiting("the network service of a broker at " + path)
		s, err := client.Dial(ctx, network.Endpoint, r.options(name))
		done()
		if err != nil {
			return nil, nil, err
		}
		done = r.sayWaiting("an address on " + name)
		l, err := network.Allocate(ctx, s, network.Request{Network: name, Hostname: r.hostname, Witness: witness})
		done()
		if err == nil {
			return s, l, nil
		}
		s.Close()
		if !errors.Is(err, wire.Interrupted) || ctx.Err() != nil {
			return nil, nil, fmt.Errorf("lease an address on %s: %w", name, err)
		}
	}
}

// interruptible returns a context that ends with the first signal that would end the command, until stop is called.
func interruptible(signals <-chan os.Signal) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case sig := <-signals:
				if s, ok := sig.(syscall.Signal); ok && (s == syscall.SIGTERM || s == syscall.SIGINT || s == syscall.SIGHUP || s == syscall.SIGQUIT) {
					cancel(signaled(s))
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return ctx, func() {
		cancel(nil)
		watching.Wait()
	}
}

// options are those of the session for a network.
func (r *run) options(name string) client.Options {
	return client.Options{Socket: r.socket, Title: "broker-run " + name}
}

// reclaim takes a lease back on a session of its own.
func (r *run) reclaim(ctx context.Context, lost *network.Lease, witness *os.File, open *sessions) (*network.Lease, error) {
	l, s, err := network.Reclaim(ctx, lost, witness, r.options(lost.Network))
	if err != nil {
		return nil, err
	}
	open.add(s)
	return l, nil
}

// sessions are those that are open. Its zero value has none.
type sessions struct {
	mu   sync.Mutex
	list []*client.Session
}

// add takes one more, and leaves those out that have ended.
func (o *sessions) add(s *client.Session) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(slices.DeleteFunc(o.list, func(old *client.Session) bool { return old.Context().Err() != nil }), s)
}

// close closes all at the same time.
func (o *sessions) close() {
	o.mu.Lock()
	list := o.list
	o.list = nil
	o.mu.Unlock()
	var closing sync.WaitGroup
	for _, s := range list {
		closing.Go(func() { s.Close() })
	}
	closing.Wait()
}
