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
  brokerctl session list           the sessions   [--state open|closed|all] [--endpoint NAME]
  brokerctl session inspect ID     one session, and what its instance sees of it; a unique prefix of the id is enough
  brokerctl session close ID       end a session   [--reason TEXT]
  brokerctl lease list             the leases of the network service   [--network NAME]
  brokerctl network list           the networks and how full they are
  brokerctl version                the version of this program

flags:
`

const codes = `
exit codes: 0 done, 1 failed, 2 usage, 3 not found or not running, 4 denied, 5 no broker, 6 timed out

example:
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
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run runs the command in args and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	signal.Ignore(syscall.SIGPIPE) // a closed pipe is a failed write, and ends the command cleanly
	c := command{out: stdout}
	flags, words, err := c.parse(args)
	if errors.Is(err, pflag.ErrHelp) || err == nil && len(words) == 0 {
		fmt.Fprint(stdout, usage, flags.FlagUsages(), codes)
		return exitOK
	}
	if err == nil {
		err = c.do(words)
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
	flags.DurationVar(&c.timeout, "timeout", 10*time.Second, "how long the whole command may take")
	flags.StringVar(&c.state, "state", "open", "session list: open, closed or all")
	flags.StringVar(&c.endpoint, "endpoint", "", "session list: only sessions of this endpoint")
	flags.StringVar(&c.network, "network", "", "lease list: only leases of this network")
	flags.StringVar(&c.reason, "reason", "", "session close: what both ends are told")
	err := flags.Parse(args)
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		err = usageError{err.Error()}
	}
	if *system {
		c.socket = socket.SystemPath
	}
	return flags, flags.Args(), err
}

// A usageError is a command that was mistyped.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

// do dispatches the words.
func (c *command) do(words []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	verb, rest := "", []string(nil)
	noun := words[0]
	if len(words) > 1 {
		verb, rest = words[1], words[2:]
	}
	lists := map[string]func(context.Context) error{
		"status ":      c.status,
		"service list": c.serviceList,
		"session list": c.sessionList,
		"lease list":   c.leaseList,
		"network list": c.networkList,
		"version ":     c.version,
	}
	if list := lists[noun+" "+verb]; list != nil {
		if len(rest) > 0 {
			return usageError{fmt.Sprintf("unexpected %q", rest[0])}
		}
		return list(ctx)
	}
	one := map[string]func(context.Context, string) error{
		"session inspect": c.sessionInspect,
		"session close":   c.sessionClose,
	}[noun+" "+verb]
	switch {
	case one != nil && len(rest) == 1:
		return one(ctx, rest[0])
	case one != nil:
		return usageError{fmt.Sprintf("%s %s takes the id of one session, as 'session list' shows it", noun, verb)}
	case verb == "":
		return usageError{fmt.Sprintf("unknown command %q", noun)}
	}
	return usageError{fmt.Sprintf("unknown command %q", noun+" "+verb)}
}

func (c *command) version(context.Context) error {
	_, err := fmt.Fprintln(c.out, "brokerctl", cli.Version())
	return err
}

// dial opens a session with an endpoint.
func (c *command) dial(ctx context.Context, endpoint string) (*client.Session, error) {
	return client.Dial(ctx, endpoint, client.Options{Socket: c.socket, Title: "brokerctl", NoWait: true})
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
