package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/networkfile"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
)

// renewWait bounds how long the network service may take to read its networks anew.
const renewWait = 10 * time.Second

// A networkSource is where the networks come from: a file, or the command line.
type networkSource struct {
	file    string   // empty: that of the first of the folders that has one
	folders []string // configuration folders
	texts   []string // of --network
	given   bool     // these were given
}

func flagsOfNetworks(flags *pflag.FlagSet) *networkSource {
	s := &networkSource{}
	flags.StringVar(&s.file, "networks", "", "a `FILE` with the networks")
	flags.StringArrayVar(&s.folders, "config-dir", nil, "a configuration `FOLDER`, in which "+networkfile.Name+" has the networks; may be given more than once: the first that has one counts")
	flags.StringArrayVar(&s.texts, "network", []string{defaultNetwork}, "a network, as `NAME=PREFIX[,PREFIX...]`; may be given more than once")
	return s
}

// load returns the networks, and the file that they are from; empty: the command line. It may be called by several at once. The error has a line for each
// problem of a file.
func (s *networkSource) load() (networkfile.Config, string, error) {
	path, err := s.path()
	if err != nil {
		return networkfile.Config{}, "", err
	}
	if path == "" {
		networks, err := parseNetworks(s.texts)
		return networkfile.Config{Networks: networks}, "", err
	}
	config, problems := networkfile.Read(path)
	errs := make([]error, len(problems))
	for i, p := range problems {
		errs[i] = p
	}
	return config, path, errors.Join(errs...)
}

// path returns the file that says which networks there are; empty: none does. It fails where the command line says that, too.
func (s *networkSource) path() (string, error) {
	path, err := s.find()
	if err == nil && path != "" && s.given {
		return "", fmt.Errorf("--network and %s both say which networks there are: give one", path)
	}
	return path, err
}

func (s *networkSource) find() (string, error) {
	if s.file != "" {
		return s.file, nil
	}
	path, err := firstFile(s.folders, networkfile.Name)
	if err != nil {
		return "", fmt.Errorf("look for the networks: %w", err)
	}
	return path, nil
}

// reloadOn has the server take the networks anew at each signal, until ctx ends.
func (s *networkSource) reloadOn(ctx context.Context, signals <-chan os.Signal, to *server.Server, log *slog.Logger) {
	log = log.With("service", network.Endpoint)
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		if _, err := to.Renew(); err != nil { // what it does it logs
			log.Error("the networks stay as they are", "err", err)
		}
	}
}

// networks are what a Server loads.
func (s *networkSource) networks() ([]server.Network, server.Limits, error) {
	config, _, err := s.load()
	return config.Networks, config.Limits, err
}

// flags are what the network service is to be started with: the networks of the command line, or the folders in which a file may be.
func (s *networkSource) flags() (flags []string) {
	if s.given {
		for _, n := range s.texts {
			flags = append(flags, "--network", n)
		}
		return flags
	}
	for _, folder := range s.folders {
		flags = append(flags, "--config-dir", folder)
	}
	return flags
}

// renewOn has the network service of the broker at a socket read its networks anew whenever that is asked for, until ctx ends.
func (s *networkSource) renewOn(ctx context.Context, again <-chan struct{}, path string, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-again:
		}
		if err := s.renew(ctx, client.Options{Socket: path, Title: "brokerd", NoWait: true}); err != nil && ctx.Err() == nil {
			log.Error("the networks stay as they are", "service", network.Endpoint, "err", err)
		}
	}
}

// renew has a running network service read its networks anew. One that is not running does so when it starts.
func (s *networkSource) renew(ctx context.Context, options client.Options) error {
	if _, _, err := s.load(); err != nil || s.given { // what the command line says does not change
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, renewWait)
	defer cancel()
	info, err := console.Ask[broker.ServiceDetails](ctx, options, broker.MethodService, broker.ServiceRequest{Name: network.Endpoint})
	if err != nil || info.State != broker.ServiceRunning && info.State != broker.ServiceStarting {
		return err
	}
	session, err := client.Dial(ctx, network.Endpoint, options)
	if err != nil {
		return err
	}
	defer session.Close()
	_, err = network.Reload(ctx, session)
	if errors.Is(err, wire.UnknownMethod) || errors.Is(err, wire.Unsupported) { // it is another program, with networks of its own
		return nil
	}
	return err
}
