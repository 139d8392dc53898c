package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/runner"
)

const (
	liveContainers = 20               // of the acts 2 to 4
	demoPatience   = 20 * time.Second // for one step
	demoTime       = 10 * time.Minute // for all of it
	logTail        = 20               // lines of the log that are shown after a failure
)

// A stage is one run of the demo: it starts the processes, kills some, and says what became of the others.
type stage struct {
	folder     string
	socket     string
	prefix     string
	containers int
	contain    runner.Contain
	log        *os.File // what all processes log
	broker     *exec.Cmd
	live       []*runtimeProcess // the runtimes of the live containers
	opened     atomic.Int64      // sessions with the network service, since the broker was started
	leased     atomic.Int64      // leases, since the network service was started
	failed     []string          // what did not hold
}

// stageMain is the demo, inside its own container.
func stageMain(args []string) int {
	flags := pflag.NewFlagSet("brokerd demo stage", pflag.ContinueOnError)
	s := &stage{}
	flags.StringVar(&s.folder, "folder", "", "the temporary folder")
	flags.IntVar(&s.containers, "containers", 0, "as of demo")
	flags.StringVar(&s.prefix, "prefix", "", "as of demo")
	if code, ok := parse(flags, args, "The demo, inside its own container."); !ok {
		return code
	}
	s.socket = socketIn(s.folder)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, demoTime, fmt.Errorf("the demo takes longer than %v", demoTime))
	defer cancel()
	err := s.show(ctx)
	if ctx.Err() != nil { // what else went wrong came of that
		clearProgress()
		fmt.Printf("\nNot shown to the end: %v\n", context.Cause(ctx))
		return exitFailed
	}
	return s.verdict(err)
}

// show plays the acts.
func (s *stage) show(ctx context.Context) (err error) {
	s.log, err = os.OpenFile(filepath.Join(s.folder, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer s.log.Close()
	fmt.Printf("A broker, its network service and container runtimes, each a process of its own, in %s\n", s.folder)
	if err := s.tryNamespaces(); err != nil {
		return err
	}
	if err := s.startBroker(ctx); err != nil {
		return err
	}
	for i, act := range []func(context.Context) error{s.killRuntimes, s.showTables, s.killNetworkService, s.killBroker} {
		started := time.Now()
		fmt.Printf("\n%d. ", i+1)
		if err := act(ctx); err != nil {
			return err
		}
		fmt.Printf("   (%.1f s)\n", time.Since(started).Seconds())
	}
	return nil
}

// tryNamespaces finds out how strictly containers can be held here.
func (s *stage) tryNamespaces() error {
	s.contain = runner.Require
	trial, err := runner.Prepare(self(containerRole), runner.Options{})
	if refusal, ok := errors.AsType[*runner.ContainError](err); ok {
		s.contain = runner.Best
		fmt.Printf("No namespaces are permitted here (%s: %v): the containers run under keepers, as with broker-run --contain best.\n", refusal.Step, refusal.Err)
		return nil
	}
	if err != nil {
		return err
	}
	trial.Close()
	fmt.Println("All of them are in a pid namespace, which ends with the demo; the process numbers shown are those inside.")
	return nil
}

// verdict says whether all of it held, and returns the exit code.
func (s *stage) verdict(err error) int {
	if err != nil {
		s.check(false, "%v", err)
	}
	if len(s.failed) == 0 {
		fmt.Println("\nAll of it held.")
		return exitOK
	}
	if log, err := os.ReadFile(filepath.Join(s.folder, "log")); err == nil && len(log) > 0 {
		lines := bytes.SplitAfter(log, []byte("\n"))
		fmt.Printf("\nThe end of the log:\n%s", bytes.Join(lines[max(0, len(lines)-logTail):], nil))
	}
	fmt.Printf("\nIt did not hold: %s\n", strings.Join(s.failed, "; "))
	return exitFailed
}

// check reports something that has to hold.
func (s *stage) check(ok bool, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	word := "OK"
	if !ok {
		word = "FAILED"
		s.failed = append(s.failed, text)
	}
	clearProgress()
	fmt.Printf("   %-6s  %s\n", word, text)
}

// progress shows how far something is, on a terminal.
func progress(done, of int, what string) {
	if cli.Terminal(os.Stdout) {
		fmt.Printf("\r   %d of %d %s", done, of, what)
	}
}

// clearProgress erases the line that progress wrote, see console_codes(4).
func clearProgress() {
	if cli.Terminal(os.Stdout) {
		fmt.Print("\r\x1b[K")
	}
}

// open opens a session as any client does.
func (s *stage) open(ctx context.Context, endpoint string) (*client.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	if endpoint == network.Endpoint {
		s.opened.Add(1)
	}
	return client.Dial(ctx, endpoint, s.options())
}

func (s *stage) options() client.Options { return client.Options{Socket: s.socket, Title: "demo"} }

// leases is the network service's list.
func (s *stage) leases(ctx context.Context) ([]network.LeaseInfo, error) {
	c, err := s.open(ctx, network.Endpoint)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return network.List(ctx, c, network.ListRequest{})
}

// sessions is the broker's list of open sessions with the network service.
func (s *stage) sessions(ctx context.Context) ([]broker.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	return console.Sessions(ctx, s.options(), broker.SessionsRequest{Endpoint: network.Endpoint})
}

// networkService is what the broker says of the network service.
func (s *stage) networkService(ctx context.Context) (broker.ServiceInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	list, err := console.Ask[broker.Services](ctx, s.options(), broker.MethodServices, nil)
	for _, info := range list.Services {
		if info.Name == network.Endpoint {
			return info, nil
		}
	}
	return broker.ServiceInfo{}, errors.Join(err, errors.New("the broker lists no network service"))
}

// printTables prints the lists as brokerctl does.
func printTables(sessions []broker.Session, leases []network.LeaseInfo) error {
	fmt.Printf("\n   What 'brokerctl session list --endpoint %s' shows:\n", network.Endpoint)
	if err := console.PrintSessions(os.Stdout, sessions); err != nil {
		return err
	}
	fmt.Println("\n   What 'brokerctl lease list' shows:")
	return console.PrintLeases(os.Stdout, leases)
}
