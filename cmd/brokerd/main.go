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

const usage = `brokerd hands out sessions between named services, and runs the network service.

usage:
  brokerd [serve] [flags]    serve as the broker until SIGTERM or SIGINT
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

// parse parses flags. It returns false, and the exit code, when there is nothing more to do.
func parse(flags *pflag.FlagSet, args []string, help string) (code int, ok bool) {
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	err := flags.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Printf("%s\n\nflags:\n%s", strings.TrimSpace(help), flags.FlagUsages())
		return exitOK, false
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\ntry '%s --help'\n", flags.Name(), err, flags.Name())
		return exitUsage, false
	case flags.NArg() > 0:
		fmt.Fprintf(os.Stderr, "%s: unexpected %q\ntry '%s --help'\n", flags.Name(), flags.Arg(0), flags.Name())
		return exitUsage, false
	}
	return exitOK, true
}
