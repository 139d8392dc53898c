package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/cmd/internal/metrics"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const serveHelp = `brokerd serve serves as the broker until SIGTERM or SIGINT. SIGHUP has it read the service files anew, network.toml, and broker.toml.

It starts services at the first open of one of their endpoints, or as their service files say: SERVICE.toml in services.d of the
configuration folders. These are /etc/fairlead over /usr/lib/fairlead for the system's broker and for root, and $XDG_CONFIG_HOME/fairlead
or ~/.config/fairlead for a user's. A file that is wrong is left out alone; 'brokerd check' says what is wrong with it. The network
service, fairlead.network, needs no file. Its networks are in network.toml of the first of the folders that has one, or given
with --network; without both there is ` + defaultNetwork + `. What each user may have of the broker is in broker.toml of the first of the folders
that has one.

When brokerd is stopped it stops what it has started, too, unless --leave-instances is given. When it is killed, or with that flag,
sessions and services live on and the next brokerd takes them up.

With --metrics it counts for Prometheus, at a Unix socket of its own user or at an address; docs/operating.md lists what.

'brokerd help' lists the other commands: check, network, demo and version.

examples:
  brokerd serve --network default=10.88.0.0/24 --network lab=10.99.0.0/16
  brokerd serve --system --leave-instances
  brokerd serve --metrics unix:/run/fairlead/metrics.sock`

// serveMain is brokerd serve.
func serveMain(args []string) int {
	flags := pflag.NewFlagSet("brokerd serve", pflag.ContinueOnError)
	path := flags.String("socket", "", "path of the broker's socket")
	which := flagsOfConfig(flags, "be the system's broker, at "+socket.SystemPath, "be this user's broker, also as root")
	leave := flags.Bool("leave-instances", false, "when stopped, leave sessions and services alone for the next brokerd")
	networks := flags.StringArray("network", []string{defaultNetwork}, "a network, as `NAME=PREFIX[,PREFIX...]`; may be given more than once")
	place := flags.String("metrics", "", "serve metrics for Prometheus at `unix:PATH|ADDRESS`, as 127.0.0.1:9464")
	logging := cli.AddLogFlags(flags, slog.LevelInfo)
	if code, ok := parse(flags, args, serveHelp); !ok {
		return code
	}
	source := &networkSource{texts: *networks, given: flags.Changed("network")}
	_, err := parseNetworks(*networks)
	var where string
	if err == nil {
		where, err = servePath(*path, which.system, which.user)
	}
	var folders []string
	if err == nil {
		folders, err = which.folders()
	}
	if err == nil {
		source.folders = folders
		_, err = source.path()
	}
	if err == nil && *place != "" {
		*place, err = metrics.Check(*place)
	}
	if err != nil {
		cli.Fail(os.Stderr, "brokerd serve", err, "")
		return exitUsage
	}
	log := logging.Logger()
	if _, _, err := source.load(); err != nil {
		log.Error("the network service cannot be started", "err", err)
	}
	config := &config{
		folders: folders, network: networkService(where, source.flags(), logging.Likewise()...), systemd: manager{log}, again: make(chan struct{}, 1),
	}
	c := broker.Config{Socket: where, Load: config.load, Quotas: config.quotas, LeaveInstances: *leave, Version: cli.Version(), Logger: log}
	if err := serve(c, config, source, *place); err != nil {
		cli.Fail(os.Stderr, "brokerd serve", err, "")
		return exitFailed
	}
	return exitOK
}

// serve is the broker until it is told to stop. Where place is not empty it serves metrics there.
func serve(c broker.Config, config *config, source *networkSource, place string) (err error) {
	systemd := config.systemd
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	reload := make(chan os.Signal, 1) // one that comes while another waits asks for the same
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	if c.Listener, err = inherited(c.Socket); err != nil {
		return err
	}
	var scraped net.Listener
	if place != "" {
		if scraped, err = metrics.Listen(place); err != nil {
			return err
		}
		defer scraped.Close()
	}
	b, err := broker.New(c)
	if err != nil {
		return err
	}
	c.Logger.Info("broker started", "socket", c.Socket, "peer", os.Getpid(), "uid", os.Geteuid())
	systemd.tell(ready)
	var work sync.WaitGroup
	work.Go(func() { heed(b, reload, c.Logger, systemd) })
	serving, done := context.WithCancel(ctx)
	work.Go(func() { source.renewOn(serving, config.again, c.Socket, c.Logger) })
	if scraped != nil {
		work.Go(func() { metrics.Serve(serving, scraped, b, c.Logger) })
	}
	defer work.Wait()
	defer done()
	err = b.Serve(ctx)
	c.Logger.Info("broker stopped", "socket", c.Socket)
	return err
}

// heed reloads the services whenever it is asked to, until the broker stops.
func heed(b *broker.Broker, reload <-chan os.Signal, log *slog.Logger, systemd manager) {
	for {
		select {
		case <-reload:
			systemd.tell(reloading()...)
			if _, err := b.Reload(); err != nil {
				log.Error("services not reloaded in full", "err", err)
			}
			systemd.tell(ready)
		case <-b.Stopping():
			systemd.tell(stopping)
			return
		}
	}
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
