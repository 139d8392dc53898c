// Command brokerctl is the operator's tool: it looks into a broker and steers it. It is an ordinary client.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
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
  brokerctl network list           the networks and how full they are; as lease list, it has the network service started
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
	flags.DurationVar(&c.timeout, "timeout", 10*time.Second, "how long the whole command may take")
	flags.StringVar(&c.state, "state", "open", "session list: open, closed or all")
	flags.StringVar(&c.endpoint, "endpoint", "", "session list: only sessions of this endpoint")
	flags.StringVar(&c.network, "network", "", "lease list: only leases of this network")
	flags.StringVar(&c.reason, "reason", "", "session close: what both ends are told")
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

// A verb is what can be done, and with which flags beside those of all commands.
type verb struct {
	all   func(context.Context) error         // of a command that takes no more words
	one   func(context.Context, string) error // of one that takes an id
	flags []string
}

func (c *command) verbs() map[string]verb {
	return map[string]verb{
		"status":          {all: c.status},
		"service list":    {all: c.serviceList},
		"session list":    {all: c.sessionList, flags: []string{"state", "endpoint"}},
		"session inspect": {one: c.sessionInspect},
		"session close":   {one: c.sessionClose, flags: []string{"reason"}},
		"lease list":      {all: c.leaseList, flags: []string{"network"}},
		"network list":    {all: c.networkList},
		"version":         {all: c.version},
	}
}

// do dispatches the words.
func (c *command) do(words []string, flags *pflag.FlagSet) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	verbs := c.verbs()
	name, rest := words[0], words[1:]
	v, known := verbs[name]
	if !known && len(rest) > 0 {
		name, rest = name+" "+rest[0], rest[1:]
		v, known = verbs[name]
	}
	if !known {
		return usageError{fmt.Sprintf("unknown command %q", name)}
	}
	if err := ownFlags(name, v, verbs, flags); err != nil {
		return err
	}
	switch {
	case v.one != nil && len(rest) == 1:
		return v.one(ctx, rest[0])
	case v.one != nil:
		return usageError{fmt.Sprintf("%s takes the id of one session, as 'session list' shows it", name)}
	case len(rest) > 0:
		return usageError{fmt.Sprintf("unexpected %q", rest[0])}
	}
	return v.all(ctx)
}

// ownFlags refuses the flags of other commands.
func ownFlags(name string, v verb, verbs map[string]verb, flags *pflag.FlagSet) error {
	for _, owner := range slices.Sorted(maps.Keys(verbs)) {
		for _, flag := range verbs[owner].flags {
			if flags.Changed(flag) && !slices.Contains(v.flags, flag) {
				return usageError{fmt.Sprintf("--%s is a flag of %s and not of %s", flag, owner, name)}
			}
		}
	}
	return nil
}

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
