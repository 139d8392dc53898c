package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const serveHelp = `brokerd serve serves as the broker until SIGTERM or SIGINT.

It starts the network service at the first open of fairlead.network, and again after that ended. When brokerd is stopped it stops
the network service too; when it is killed, sessions and services live on and the next brokerd takes them up.

example:
  brokerd serve --network default=10.88.0.0/24 --network lab=10.99.0.0/16`

// serveMain is brokerd serve.
func serveMain(args []string) int {
	flags := pflag.NewFlagSet("brokerd serve", pflag.ContinueOnError)
	path := flags.String("socket", "", "path of the broker's socket")
	system := flags.Bool("system", false, "be the system's broker, at "+socket.SystemPath)
	user := flags.Bool("user", false, "be this user's broker, also as root")
	networks := flags.StringArray("network", []string{defaultNetwork}, "a network, as `NAME=PREFIX`; may be given more than once")
	verbose := flags.Bool("verbose", false, "log more than start, stop, denials and limits")
	if code, ok := parse(flags, args, serveHelp); !ok {
		return code
	}
	if _, err := parseNetworks(*networks); err != nil {
		cli.Fail(os.Stderr, "brokerd serve", err, "")
		return exitUsage
	}
	where, err := servePath(*path, *system, *user)
	if err != nil {
		cli.Fail(os.Stderr, "brokerd serve", err, "")
		return exitUsage
	}
	log := newLogger(*verbose)
	b, err := broker.New(broker.Config{
		Socket: where, Services: []broker.Service{networkService(where, *networks)}, Version: cli.Version(), Logger: log,
	})
	if err != nil {
		cli.Fail(os.Stderr, "brokerd serve", err, "")
		return exitFailed
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log.Info("broker started", "socket", where, "peer", os.Getpid(), "uid", os.Geteuid())
	err = b.Serve(ctx)
	log.Info("broker stopped", "socket", where)
	if err != nil {
		cli.Fail(os.Stderr, "brokerd serve", err, "")
		return exitFailed
	}
	return exitOK
}

// servePath returns the absolute path of the socket to serve at.
func servePath(path string, system, user bool) (string, error) {
	var err error
	switch {
	case system && user, path != "" && (system || user):
		return "", errors.New("--socket, --system and --user each say which broker to be: give one of them")
	case system:
		path = socket.SystemPath
	case user:
		path, err = socket.UserPath()
	default:
		path, err = socket.Path(path)
	}
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// networkService is this program run again as the network service.
func networkService(path string, networks []string) broker.Service {
	program := []string{ownPath(), "network", "--socket", path, "--state-dir", broker.StateDir(path, network.Endpoint)}
	for _, n := range networks {
		program = append(program, "--network", n)
	}
	return broker.Service{Name: network.Endpoint, Endpoints: []string{network.Endpoint}, Program: program}
}

func newLogger(verbose bool) *slog.Logger {
	if verbose {
		return cli.Logger(slog.LevelDebug)
	}
	return cli.Logger(slog.LevelInfo)
}

// ownPath returns the path of this program: by its name where that is still this very file, so that people recognise what it starts.
func ownPath() string {
	const always = "/proc/self/exe"
	path, err := os.Executable()
	if err != nil {
		return always
	}
	named, err := os.Stat(path)
	running, runningErr := os.Stat(always)
	if err != nil || runningErr != nil || !os.SameFile(named, running) {
		return always
	}
	return path
}
