package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/services/network/networkfile"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const checkHelp = `brokerd check [FILE ...] says what is wrong with service files, network.toml and broker.toml, as FILE:LINE: key: rule, and starts nothing.

Without FILE it reads the configuration folders as brokerd serve does. Names and endpoints that two services have are wrong, too. A program
that is not there, or is not executable, is a warning: it may come later. A FILE is a service file; --networks checks one with networks,
and --quotas one with quotas.

exit codes: 0 all is right, 1 something is wrong, 2 usage

examples:
  brokerd check
  brokerd check com.example.counter.toml
  brokerd check --networks network.toml --quotas broker.toml`

// checkMain is brokerd check.
func checkMain(args []string) int {
	flags := pflag.NewFlagSet("brokerd check", pflag.ContinueOnError)
	which := flagsOfConfig(flags, "the files of the system's broker", "the files of this user's broker, also as root")
	networks := flags.StringArray("networks", nil, "also, or alone, a `FILE` with networks, as network.toml; may be given more than once")
	quotas := flags.StringArray("quotas", nil, "also, or alone, a `FILE` with quotas, as broker.toml; may be given more than once")
	if code, ok := parseFlags(flags, args, checkHelp); !ok {
		return code
	}
	files := flags.Args()
	byFile := len(files)+len(*networks)+len(*quotas) > 0
	folders, err := which.folders()
	switch {
	case which.system && which.user:
		err = errors.New("--system and --user each say whose service files to check: give one of them")
	case byFile && *which != (configFlags{}):
		err = errors.New("files are checked by themselves: give no --config-dir, --system or --user with them")
	}
	if err != nil {
		cli.Fail(os.Stderr, "brokerd check", err, "")
		return exitUsage
	}
	builtIn := []servicefile.Service{networkService(socket.SystemPath, nil)}
	if byFile {
		services, problems := servicefile.ReadAll(builtIn, distinct(files)...)
		return report(nil, distinct(*networks), services, append(problems, quotaProblems(distinct(*quotas))...))
	}
	services, problems := servicefile.LoadWith(builtIn, folders...)
	switch file, err := (&networkSource{folders: folders}).find(); {
	case err != nil:
		cli.Fail(os.Stderr, "brokerd check", err, "")
		return exitFailed
	case file != "":
		*networks = []string{file}
	}
	_, wrong := (&config{folders: folders}).quotas()
	return report(folders, *networks, services, append(problems, wrong...))
}

// quotaProblems returns what is wrong with files with quotas.
func quotaProblems(files []string) (problems []*servicefile.Problem) {
	for _, path := range files {
		_, wrong := quota.Read(path)
		problems = append(problems, wrong...)
	}
	return problems
}

// distinct returns the paths without those that are there twice.
func distinct(paths []string) (list []string) {
	for _, path := range paths {
		if path = filepath.Clean(path); !slices.Contains(list, path) {
			list = append(list, path)
		}
	}
	return list
}

// report prints what was found in folders, or in files, and in files with networks, and returns the exit code.
func report(folders, files []string, services []servicefile.Service, problems []*servicefile.Problem) (code int) {
	networks := 0
	for _, path := range files {
		config, wrong := networkfile.Read(path)
		networks += len(config.Networks)
		problems = append(problems, wrong...)
	}
	services = slices.DeleteFunc(services, func(s servicefile.Service) bool { return s.File == "" }) // what is built in is right
	for _, p := range problems {
		fmt.Fprintln(os.Stderr, p)
	}
	for _, s := range services {
		if w := doubt(s); w != nil {
			fmt.Fprintln(os.Stderr, w)
		}
	}
	verdict := counted(len(services), "service")
	if networks > 0 {
		verdict += " and " + counted(networks, "network")
	}
	verdict += " right"
	if wrong := len(brokenFiles(problems)); wrong > 0 {
		verdict += fmt.Sprintf(", %s wrong", counted(wrong, "file"))
		code = exitFailed
	}
	if len(folders) > 0 {
		verdict += ", in " + wire.Printable(strings.Join(folders, " and "), 1024)
		if none := without(folders); len(none) > 0 {
			verdict += "; there is no services.d in " + wire.Printable(strings.Join(none, " and "), 1024)
		}
	}
	fmt.Println(verdict)
	return code
}

// without returns those of folders that have no services.d.
func without(folders []string) []string {
	return slices.DeleteFunc(slices.Clone(folders), func(folder string) bool {
		_, err := os.Stat(filepath.Join(folder, "services.d"))
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// doubt returns what may be wrong with a program; nil: nothing.
func doubt(s servicefile.Service) *servicefile.Problem {
	if len(s.Program) == 0 {
		return nil
	}
	rule := ""
	switch info, err := os.Stat(s.Program[0]); {
	case err != nil:
		rule = err.Error()
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		rule = s.Program[0] + " is no executable file"
	default:
		return nil
	}
	return &servicefile.Problem{File: s.File, Key: "program", Rule: "warning: " + wire.Printable(rule, 1024)}
}

// counted is a number with what it counts.
func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}
