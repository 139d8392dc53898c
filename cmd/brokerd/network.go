package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
)

// defaultNetwork is the network that is served if none is given.
const defaultNetwork = network.DefaultNetwork + "=10.88.0.0/24"

// networkDrain is how long a stopping network service waits for the requests in flight; those that wait for an address would take longer.
const networkDrain = time.Second

const networkHelp = `brokerd network is the network service of the broker at a socket, until SIGTERM or SIGINT. The broker starts it itself.

It leases addresses to sessions, and writes down who has which, so that none that is in use is given out again after it has crashed.
SIGHUP has it read the file with the networks anew; a change that would leave a lease without its address is refused.

examples:
  brokerd network --network default=10.88.0.0/24 --network lab=10.99.0.0/16,fd00:99::/64
  brokerd network --networks network.toml`

// networkMain is brokerd network.
func networkMain(args []string) int {
	flags := pflag.NewFlagSet("brokerd network", pflag.ContinueOnError)
	path := flags.String("socket", "", "path of the broker's socket")
	stateDir := flags.String("state-dir", "", "folder of the record of leases (default: SOCKET.d/"+network.Endpoint+")")
	source := flagsOfNetworks(flags)
	logging := cli.AddLogFlags(flags, slog.LevelInfo)
	if code, ok := parse(flags, args, networkHelp); !ok {
		return code
	}
	source.given = flags.Changed("network")
	config, _, err := source.load()
	if err == nil {
		*path, err = servePath(*path, false, false)
	}
	if err != nil {
		cli.Fail(os.Stderr, "brokerd network", err, "")
		return exitUsage
	}
	if *stateDir == "" {
		*stateDir = broker.StateDir(*path, network.Endpoint)
	}
	lock, err := lockNetwork(*path)
	if err == nil {
		defer lock.Close()
		err = serveNetwork(source, server.Config{
			Networks: config.Networks, Limits: config.Limits, Load: source.networks, StateDir: *stateDir, Socket: *path, Logger: logging.Logger(),
			Suspects: func(ctx context.Context) ([]int, error) { return earlierClients(ctx, *path) },
		})
	}
	if err != nil {
		cli.Fail(os.Stderr, "brokerd network", err, "")
		return exitFailed
	}
	return exitOK
}

// parseNetworks takes the values of --network, which must go together.
func parseNetworks(texts []string) ([]server.Network, error) {
	var networks []server.Network
	for _, text := range texts {
		n, err := server.ParseNetwork(text)
		if err != nil {
			return nil, err
		}
		networks = append(networks, n)
	}
	return networks, server.CheckNetworks(networks)
}

// serveNetwork serves until it is told to stop. SIGHUP has it take its networks anew from their source.
func serveNetwork(source *networkSource, c server.Config) error {
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	s, err := server.New(c)
	if err != nil {
		return err
	}
	defer s.Close()
	var reloading sync.WaitGroup
	reloading.Go(func() { source.reloadOn(ctx, reload, s, c.Logger) })
	defer reloading.Wait()
	defer stop()
	log := c.Logger.With("service", network.Endpoint)
	log.Info("network service started", "socket", c.Socket, "peer", os.Getpid())
	err = services.Server{
		Service: network.Endpoint, Endpoints: map[string]*services.Mux{network.Endpoint: s.Mux()},
		Socket: c.Socket, Drain: networkDrain, Logger: c.Logger,
	}.Serve(ctx)
	log.Info("network service stopped", "socket", c.Socket, "peer", os.Getpid())
	return err
}

// lockNetwork takes the lock that only one network service of a broker has, for as long as this process lives. One that the broker started has
// inherited it locked, and gets nil.
func lockNetwork(path string) (*os.File, error) {
	if os.Getenv(services.LockVariable) != "" {
		return nil, nil
	}
	lock, err := broker.Lock(broker.LockPath(path, network.Endpoint))
	if errors.Is(err, wire.Conflict) {
		return nil, fmt.Errorf("another network service of the broker at %s is running: 'brokerctl service list' shows it, and the broker starts one itself "+
			"when it is needed (%w)", path, err)
	}
	return lock, err
}

// earlierClients asks the broker for the clients of sessions that earlier instances of the network service had.
func earlierClients(ctx context.Context, path string) ([]int, error) {
	options := client.Options{Socket: path, Title: "network service"}
	sessions, err := console.Sessions(ctx, options, broker.SessionsRequest{State: "all", Endpoint: network.Endpoint})
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, s := range sessions {
		// Those of this instance are told in its table, and one that is being opened has no instance yet.
		if s.Instance.PID != 0 && s.Instance.PID != os.Getpid() && s.Client.PID != 0 {
			pids = append(pids, s.Client.PID)
		}
	}
	return pids, nil
}
