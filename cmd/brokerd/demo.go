package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/broker/keeper"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/runner"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const demoHelp = `brokerd demo shows the main job with real processes: a broker, a network service, and container runtimes.

It needs nothing but this program, touches nothing but a temporary folder, and ends all that it started, also at Ctrl-C.

  1. 301 containers on a network of 253 addresses, each runtime SIGKILLed as soon as it has its lease: no address is lost.
  2. 20 live containers, and the tables of sessions and leases.
  3. The network service is SIGKILLed: every runtime ends its container.
  4. The broker is SIGKILLed and started again: sessions and leases do not notice.

What it reports comes from the lists of the broker and the network service, and from /proc. What these count is compared with what the
demo has done.

exit codes: 0 all of it held, 1 it did not, 2 usage

example:
  brokerd demo --containers 1000 --prefix 10.88.0.0/26`

// The words by which the demo runs this program again.
const (
	stageRole     = "stage"     // the demo itself, in a container of its own
	runtimeRole   = "runtime"   // a container runtime
	containerRole = "container" // what runs in its container
)

// leastPrefix is the longest prefix whose addresses suffice for the live containers.
const leastPrefix = 27

// demoMain is brokerd demo.
func demoMain(args []string) int {
	if len(args) > 0 {
		switch args[0] {
		case stageRole:
			return stageMain(args[1:])
		case runtimeRole:
			return runtimeMain(args[1:])
		case containerRole:
			return containerMain(args[1:])
		}
	}
	flags := pflag.NewFlagSet("brokerd demo", pflag.ContinueOnError)
	containers := flags.Int("containers", 301, "how many containers to SIGKILL the runtimes of")
	prefix := flags.String("prefix", "10.88.0.0/24", "the network's addresses; nothing is configured with them")
	if code, ok := parse(flags, args, demoHelp); !ok {
		return code
	}
	if err := checkDemo(*containers, *prefix); err != nil {
		cli.Fail(os.Stderr, "brokerd demo", err, "try 'brokerd demo --help'")
		return exitUsage
	}
	err := runStage(*containers, *prefix)
	if exit, ok := errors.AsType[*runner.ExitError](err); ok && exit.Signal == 0 {
		return exitFailed // the stage has said what did not hold
	}
	if err != nil {
		cli.Fail(os.Stderr, "brokerd demo", err, "")
		return exitFailed
	}
	return exitOK
}

func checkDemo(containers int, prefix string) error {
	if containers < 1 {
		return fmt.Errorf("--containers %d: want 1 or more", containers)
	}
	if _, err := parseNetworks([]string{network.DefaultNetwork + "=" + prefix}); err != nil {
		return err
	}
	if p, err := netip.ParsePrefix(prefix); err != nil || p.Bits() > leastPrefix {
		return fmt.Errorf("--prefix %s: want a /%d or shorter, for %d live containers", prefix, leastPrefix, liveContainers)
	}
	return nil
}

// runStage runs the stage in a temporary folder and in a container. So all its processes end with it, and with this one, however either
// ends: also the network service, which outlives a broker that is killed.
func runStage(containers int, prefix string) (err error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, runner.Signals()...)
	defer signal.Stop(signals)
	folder, err := demoFolder()
	if err != nil {
		return err
	}
	defer func() {
		removeCgroups(folder)
		err = errors.Join(err, os.RemoveAll(folder))
	}()

	cmd := self(stageRole, "--folder", folder, "--containers", strconv.Itoa(containers), "--prefix", prefix)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	container, err := runner.Prepare(cmd, runner.Options{Contain: runner.Best})
	if err != nil {
		return err
	}
	var forwarding sync.WaitGroup
	forwarding.Go(func() { container.Forward(signals) })
	defer forwarding.Wait()
	defer container.Close()
	return container.Run(context.Background())
}

// removeCgroups removes the cgroups of instances whose keepers have died with the stage. The broker's records say where they are.
func removeCgroups(folder string) {
	records, _ := filepath.Glob(filepath.Join(socketIn(folder)+".d", "*.json"))
	for _, path := range records {
		var record struct {
			Keeper keeper.Record `json:"keeper"`
		}
		if text, err := os.ReadFile(path); err == nil && json.Unmarshal(text, &record) == nil && record.Keeper.Cgroup != "" {
			os.Remove(record.Keeper.Cgroup) // fails where it is gone
		}
	}
}

// self is a command that runs this program again as a part of the demo.
func self(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{"demo", role}, args...)...)
	cmd.Args[0] = "brokerd"
	return cmd
}

// demoFolder makes a folder whose path is short enough for a socket in it.
func demoFolder() (string, error) {
	var failures []error
	for _, base := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		folder, err := os.MkdirTemp(base, "fairlead-demo-")
		if err == nil {
			if folder, err = filepath.Abs(folder); err == nil {
				err = socket.CheckPath(socketIn(folder))
			}
			if err == nil {
				return folder, nil
			}
			os.Remove(folder)
		}
		failures = append(failures, err)
	}
	return "", fmt.Errorf("make a temporary folder; set TMPDIR to where one can be made: %w", errors.Join(failures...))
}

func socketIn(folder string) string { return filepath.Join(folder, "broker.sock") }
