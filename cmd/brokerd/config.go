package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// systemFolders are the configuration folders of the system's broker: the administrator's over those of packages.
var systemFolders = []string{"/etc/fairlead", "/usr/lib/fairlead"}

// passedOn are the variables of brokerd's own environment that its network service reads, too, beside those that every service gets.
var passedOn = []string{"NO_COLOR", "GORACE", "GOCOVERDIR"}

// networkThrottle is the throttle interval of the network service. It is less than that of others, as containers that take their leases back count on it: by default they
// give it 5 s (broker-run --grace), in which one that fails at once each time is started twice more, 1 s and 3 s after the first start. It starts within milliseconds.
const networkThrottle = time.Second

// A configFlags says which configuration folders to read.
type configFlags struct {
	folder       string
	system, user bool
}

func flagsOfConfig(flags *pflag.FlagSet, system, user string) *configFlags {
	c := &configFlags{}
	flags.StringVar(&c.folder, "config-dir", "", "the configuration `FOLDER`, with services.d, network.toml and broker.toml")
	flags.BoolVar(&c.system, "system", false, system)
	flags.BoolVar(&c.user, "user", false, user)
	return c
}

// folders returns the configuration folders, of which an earlier one has precedence. Only one that is named must be there.
func (c *configFlags) folders() ([]string, error) {
	if c.folder != "" {
		folder, err := filepath.Abs(c.folder)
		if err != nil {
			return nil, err
		}
		if info, err := os.Stat(folder); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("--config-dir %s: want a folder that is there, in which services.d is or will be", folder)
		}
		return []string{folder}, nil
	}
	if c.system || os.Geteuid() == 0 && !c.user {
		return systemFolders, nil
	}
	folder := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(folder) { // the XDG base directory specification has a relative one ignored
		home, err := homeFolder()
		if err != nil {
			return nil, err
		}
		folder = filepath.Join(home, ".config")
	}
	return []string{filepath.Join(folder, "fairlead")}, nil
}

func homeFolder() (string, error) {
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		return home, nil
	}
	if u, err := user.Current(); err == nil && filepath.IsAbs(u.HomeDir) {
		return u.HomeDir, nil
	}
	return "", errors.New("this user has no home folder to look for service files in: give --config-dir, or set HOME")
}

// A config is what the broker may start, which is what service files say and the network service, and what users may have of it.
type config struct {
	folders []string
	network servicefile.Service // as it is without a file
	systemd manager             // is told how many services there are
	again   chan struct{}       // takes one when the service files were read anew

	mu   sync.Mutex
	read bool   // the service files were, once
	file string // of the network service as it was loaded last; empty: it had none
}

// load reads the service files. It may be called by several at once.
func (c *config) load() ([]servicefile.Service, []*servicefile.Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read {
		select {
		case c.again <- struct{}{}:
		default: // one that waits asks for the same
		}
	}
	c.read = true
	services, problems := servicefile.LoadWith([]servicefile.Service{c.network}, c.folders...)
	c.systemd.tell(status(len(services), len(brokenFiles(problems))))
	i := slices.IndexFunc(services, func(s servicefile.Service) bool { return s.Name == network.Endpoint })
	if services[i].File == "" && c.file != "" && slices.ContainsFunc(problems, c.hides) {
		return slices.Delete(services, i, i+1), problems // it stays as it was, and must not fall back to what is built in
	}
	c.file = services[i].File
	return services, problems
}

// hides reports whether a problem is what keeps the file of the network service from being loaded: its own, that of one which masks it, or its folder's.
func (c *config) hides(p *servicefile.Problem) bool {
	return filepath.Base(p.File) == filepath.Base(c.file) || p.File == filepath.Dir(c.file)
}

// quotas reads what each user may have, of the first folder that says it.
func (c *config) quotas() (quota.Limits, []*servicefile.Problem) {
	path, err := firstFile(c.folders, quota.Name)
	switch {
	case err != nil:
		return quota.Limits{}, []*servicefile.Problem{{File: quota.Name, Rule: wire.Printable(err.Error(), 1024)}}
	case path == "":
		return quota.Defaults(), nil
	}
	return quota.Read(path)
}

// firstFile returns the path of a file in the first of some folders that has it; empty: none has.
func firstFile(folders []string, name string) (string, error) {
	for _, folder := range folders {
		path := filepath.Join(folder, name)
		if _, err := os.Lstat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return path, err
		}
	}
	return "", nil
}

// brokenFiles returns the files that have problems.
func brokenFiles(problems []*servicefile.Problem) map[string]bool {
	files := map[string]bool{}
	for _, p := range problems {
		files[p.File] = true
	}
	return files
}

// networkService is this program run again as the network service, with the flags that say which networks there are, and more. Its log lines go where the broker's
// go.
func networkService(path string, networks []string, more ...string) servicefile.Service {
	program := []string{ownPath(), "network", "--socket", path, "--state-dir", broker.StateDir(path, network.Endpoint)}
	program = append(append(program, networks...), more...)
	environment := map[string]string{}
	for _, name := range passedOn {
		if value, set := os.LookupEnv(name); set {
			environment[name] = value
		}
	}
	return servicefile.Service{
		Name: network.Endpoint, Endpoints: []string{network.Endpoint}, Program: program, Environment: environment,
		Stdout: servicefile.Inherit, Stderr: servicefile.Inherit, ThrottleInterval: networkThrottle,
	}.WithDefaults()
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
