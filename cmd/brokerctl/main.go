// Command brokerctl is the operator's tool: it looks into a broker and steers it. It is an ordinary client.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/cmd/internal/bench"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/wire"
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

// A command is one run of brokerctl.
type command struct {
	out      io.Writer
	socket   string
	json     bool
	timeout  time.Duration
	state    string
	endpoint string
	pid      int
	uid      *uint32 // nil: any
	end      string
	title    string
	network  string
	reason   string
	follow   bool
	lines    int
	accept   []string
	since    string
	kinds    []string
	leave    bool
	bench    bench.Options
	view     cli.View
	watch    time.Duration // between what is printed again and again; 0: it is printed once
	before   meter         // what was counted in the round before

	wantsHelp bool
	timed     bool      // --timeout was given
	in        *os.File  // what is read where a command reads
	errs      io.Writer // for what is said beside an error
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run runs the command in args and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	signal.Ignore(syscall.SIGPIPE) // a closed pipe is a failed write, and ends the command cleanly
	c := command{out: stdout, errs: stderr, in: os.Stdin}
	if len(args) > 0 && args[0] == completing {
		c.complete(args[1:])
		return exitOK
	}
	flags, words, err := c.parse(args)
	c.view.Color = c.terminal() && os.Getenv("NO_COLOR") == ""
	switch {
	case err != nil:
	case c.wantsHelp:
		err = c.help(context.Background(), words)
	case len(words) == 0:
		err = c.do([]string{"status"}, flags)
		defer fmt.Fprintln(stderr, "try 'brokerctl --help'")
	default:
		err = c.do(words, flags)
	}
	return report(stderr, err)
}

// terminal reports whether what is printed goes to a terminal.
func (c *command) terminal() bool {
	f, ok := c.out.(*os.File)
	return ok && cli.Terminal(f)
}

// A usageError is a command that was mistyped.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func (c *command) version(context.Context) error {
	_, err := fmt.Fprintln(c.out, "brokerctl", cli.Version())
	return err
}

// said is the text of an error: what a service has answered, without what it was asked, which the user has typed.
func said(err error) string {
	text := err.Error()
	asked, answer, found := strings.Cut(text, ": ")
	if e, ok := errors.AsType[*wire.Error](err); ok && found && e.Origin == wire.Peer && strings.HasPrefix(asked, "call ") {
		return answer
	}
	return text
}

// report prints an error, and returns the exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, syscall.EPIPE) {
		return exitOK // whoever read has seen enough
	}
	fmt.Fprintf(w, "brokerctl: %s\n", cli.Said(said(err))) // a service may have written it
	if _, mistyped := errors.AsType[usageError](err); mistyped {
		fmt.Fprintln(w, "try 'brokerctl --help'")
		return exitUsage
	}
	_, none := errors.AsType[*client.NoBrokerError](err)
	if _, stranger := errors.AsType[*client.StrangerError](err); none || stranger {
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
