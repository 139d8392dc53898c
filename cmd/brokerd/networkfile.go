package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/networkfile"
	"github.com/fairlead-dev/fairlead/services/network/server"
)

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

// load returns the networks, and the file that they are from; empty: the command line. The error has a line for each problem of a file.
func (s *networkSource) load() (networkfile.Config, string, error) {
	path, err := s.path()
	if err != nil || path == "" {
		if err != nil {
			return networkfile.Config{}, "", err
		}
		networks, err := parseNetworks(s.texts)
		return networkfile.Config{Networks: networks}, "", err
	}
	if s.given {
		return networkfile.Config{}, "", fmt.Errorf("--network and %s both say which networks there are: give one", path)
	}
	config, problems := networkfile.Read(path)
	errs := make([]error, len(problems))
	for i, p := range problems {
		errs[i] = p
	}
	return config, path, errors.Join(errs...)
}

// path returns the file that says which networks there are; empty: none does.
func (s *networkSource) path() (string, error) {
	if s.file != "" {
		return s.file, nil
	}
	for _, folder := range s.folders {
		path := filepath.Join(folder, networkfile.Name)
		switch _, err := os.Lstat(path); {
		case err == nil:
			return path, nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("look for the networks: %w", err)
		}
	}
	return "", nil
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
		config, _, err := s.load()
		if err == nil {
			err = to.Reload(config.Networks, config.Limits)
		}
		if err != nil {
			log.Error("the networks stay as they are", "err", err)
		} else {
			log.Info(fmt.Sprintf("networks reloaded: there are %d", len(config.Networks)))
		}
	}
}
