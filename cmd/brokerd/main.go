// Command brokerd is the broker. Without a word it serves.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/internal/cli"
)

const usage = `brokerd hands out sessions between named services, and starts these as their service files say.

usage:
  brokerd [serve] [flags]    serve as the broker until SIGTERM or SIGINT; SIGHUP has it read the service files anew
  brokerd check [FILE ...]   say what is wrong with service files, and start nothing
  brokerd network [flags]    be the network service; the broker starts this itself
  brokerd demo               show the main job with real processes, in a temporary folder
  brokerd version            print the version

Each takes --help. The broker's socket is, in this order: --socket, $FAIRLEAD_SOCKET, for root
/run/fairlead/broker.sock, else $XDG_RUNTIME_DIR/fairlead/broker.sock, else fairlead-UID/broker.sock in
the temp folder.
`

// Exit codes of brokerd.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	signal.Ignore(syscall.SIGPIPE) // a log that nobody reads any more ends nothing
	os.Exit(run(os.Args[1:]))
}

// run dispatches the subcommand and returns the exit code.
func run(args []string) int {
	command := "serve"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	switch command {
	case "serve":
		return serveMain(args)
	case "check":
		return checkMain(args)
	case "network":
		return networkMain(args)
	case "demo":
		return demoMain(args)
	case "version":
		fmt.Println("brokerd", cli.Version())
		return exitOK
	case "help":
		fmt.Print(usage)
		return exitOK
	}
	fmt.Fprintf(os.Stderr, "brokerd: unknown command %q\n%s", command, usage)
	return exitUsage
}

// parse parses flags of a command that takes no arguments. It returns false, and the exit code, when there is nothing more to do.
func parse(flags *pflag.FlagSet, args []string, help string) (code int, ok bool) {
	if code, ok = parseFlags(flags, args, help); ok && flags.NArg() > 0 {
		return misused(flags, fmt.Errorf("unexpected %q", flags.Arg(0))), false
	}
	return code, ok
}

// parseFlags is parse for a command that takes arguments.
func parseFlags(flags *pflag.FlagSet, args []string, help string) (code int, ok bool) {
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	err := flags.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Printf("%s\n\nflags:\n%s", strings.TrimSpace(help), flags.FlagUsages())
		return exitOK, false
	case err != nil:
		return misused(flags, err), false
	}
	return exitOK, true
}

// misused says what is wrong with a command line, and returns the exit code.
func misused(flags *pflag.FlagSet, err error) (code int) {
	fmt.Fprintf(os.Stderr, "%s: %v\ntry '%s --help'\n", flags.Name(), err, flags.Name())
	return exitUsage
}
