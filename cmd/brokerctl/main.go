// Command brokerctl is the operator's tool: it looks into a broker and steers it. It is an ordinary client.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// Exit codes of brokerctl. They are a contract.
const (
	exitOK       = 0
	exitFailed   = 1
	exitUsage    = 2
	exitNotFound = 3 // not found, or not running
	exitDenied   = 4
	exitNoBroker = 5
	exitTimeout  = 6
)

const usage = `brokerctl looks into a Fairlead broker and steers it.

usage:
  brokerctl status                 what the broker is and how much it has to do
  brokerctl service list           the services and their instances
  brokerctl service inspect NAME   one service: what its file says and what it has come to
  brokerctl service start NAME     start a service; done when its instance is ready
  brokerctl service stop NAME      stop a service; done when the last of its processes is gone
  brokerctl service restart NAME   stop a service and start it again; done when its next instance is ready
  brokerctl service wait NAME      wait until a service has an instance that is ready
  brokerctl service reset NAME     forget a service's failures, and lift its suspension
  brokerctl service why NAME       what caused its last start, and why it is not running if it is not
  brokerctl service logs NAME      the end of its output   [-n N] [-f: and what comes, until ^C]
  brokerctl service reload         have the broker read its service files again
  brokerctl session list           the sessions   [--state open|closed|all] [--endpoint NAME]
  brokerctl session inspect ID     one session, and what its instance sees of it; a unique prefix of the id is enough
  brokerctl session close ID       end a session   [--reason TEXT]
  brokerctl lease list             the leases of the network service   [--network NAME]
  brokerctl network list           the networks and how full they are; as lease list, it has the network service started
  brokerctl version                the version of this program

flags:
`

const codes = `
exit codes: 0 done, 1 failed, 2 usage, 3 not found or not running, 4 denied, 5 no broker, 6 timed out

examples:
  brokerctl service why com.example.echo
  brokerctl service logs -f -n 20 com.example.echo
  brokerctl session list --state closed --json
`

// A command is one run of brokerctl.
type command struct {
	out      io.Writer
	socket   string
	json     bool
	timeout  time.Duration
	state    string
	endpoint string
	network  string
	reason   string
	follow   bool
	lines    int
	errs     io.Writer // for what is said beside an error
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run runs the command in args and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	signal.Ignore(syscall.SIGPIPE) // a closed pipe is a failed write, and ends the command cleanly
	c := command{out: stdout, errs: stderr}
	flags, words, err := c.parse(args)
	if errors.Is(err, pflag.ErrHelp) || err == nil && len(words) == 0 {
		fmt.Fprint(stdout, usage, flags.FlagUsages(), codes)
		return exitOK
	}
	if err == nil {
		err = c.do(words, flags)
	}
	return report(stderr, err)
}

// parse reads flags, which may stand anywhere, and returns the words.
func (c *command) parse(args []string) (*pflag.FlagSet, []string, error) {
	flags := pflag.NewFlagSet("brokerctl", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&c.socket, "socket", "", "path of the broker's socket (default: $FAIRLEAD_SOCKET, else that of this user)")
	system := flags.Bool("system", false, "ask the system's broker, at "+socket.SystemPath)
	flags.BoolVar(&c.json, "json", false, "print JSON, for programs")
	flags.DurationVar(&c.timeout, "timeout", ordinaryPatience, "how long the whole command may take; service start, stop, restart and wait have "+longPatience.String())
	flags.StringVar(&c.state, "state", "open", "session list: open, closed or all")
	flags.StringVar(&c.endpoint, "endpoint", "", "session list: only sessions of this endpoint")
	flags.StringVar(&c.network, "network", "", "lease list: only leases of this network")
	flags.StringVar(&c.reason, "reason", "", "session close: what both ends are told")
	flags.BoolVarP(&c.follow, "follow", "f", false, "service logs: go on with what is written, until ^C")
	flags.IntVarP(&c.lines, "lines", "n", 100, "service logs: how many lines of the end, 1 to 10000")
	err := flags.Parse(args)
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		err = usageError{err.Error()}
	}
	if *system && c.socket != "" && err == nil {
		err = usageError{"--socket and --system each name a broker: give one of them"}
	}
	if *system {
		c.socket = socket.SystemPath
	}
	return flags, flags.Args(), err
}

// A usageError is a command that was mistyped.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func (c *command) version(context.Context) error {
	_, err := fmt.Fprintln(c.out, "brokerctl", cli.Version())
	return err
}

// options say how sessions are opened.
func (c *command) options() client.Options {
	return client.Options{Socket: c.socket, Title: "brokerctl", NoWait: true}
}

// dial opens a session with an endpoint.
func (c *command) dial(ctx context.Context, endpoint string) (*client.Session, error) {
	return client.Dial(ctx, endpoint, c.options())
}

// report prints an error, and returns the exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, syscall.EPIPE) {
		return exitOK // whoever read has seen enough
	}
	fmt.Fprintf(w, "brokerctl: %v\n", err)
	if _, mistyped := errors.AsType[usageError](err); mistyped {
		fmt.Fprintln(w, "try 'brokerctl --help'")
		return exitUsage
	}
	if _, none := errors.AsType[*client.NoBrokerError](err); none {
		return exitNoBroker
	}
	switch wire.CodeOf(err) {
	case wire.NotFound, wire.UnknownEndpoint, wire.Unavailable, wire.StartFailed, wire.StartTimeout, wire.Suspended, wire.Terminating:
		return exitNotFound
	case wire.NotPermitted, wire.Refused:
		return exitDenied
	case wire.DeadlineExceeded:
		fmt.Fprintln(w, "the broker or the service takes longer than --timeout: see whether it is stopped or overloaded")
		return exitTimeout
	case wire.Malformed, wire.Conflict:
		return exitUsage
	}
	return exitFailed
}
