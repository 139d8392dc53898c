package cli_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/cli"
)

// roleVariable has the test's own program log as its flags say.
const roleVariable = "CLI_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "" {
		os.Exit(m.Run())
	}
	flags := pflag.NewFlagSet("logs", pflag.ContinueOnError)
	logging := cli.AddLogFlags(flags, slog.LevelInfo)
	if err := flags.Parse(os.Args[1:]); err != nil {
		os.Stdout.WriteString(err.Error())
		os.Exit(2)
	}
	log := logging.Logger()
	log.Debug("fine")
	log.Info("usual", "peer", 7)
	log.Error("bad")
	os.Stdout.WriteString(strings.Join(logging.Likewise(), " "))
}

// program returns a program that logs.
func program(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleVariable+"=logs", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// logs runs a program that logs, with its stderr a pipe.
func logs(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	cmd := program(args...)
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

func TestACommandLogsFromTheLevelAndInTheFormatThatItIsTold(t *testing.T) {
	for _, test := range []struct {
		args  string
		lines int
		has   string
		given string
	}{
		{"", 2, `"msg":"usual","peer":7`, ""},
		{"--log-format=json --log-level error", 1, `"level":"ERROR","msg":"bad"`, "--log-level=error --log-format=json"},
		{"--log-format text", 2, "INF usual peer=7", "--log-format=text"},
		{"--log-level=debug", 3, `"level":"DEBUG","msg":"fine"`, "--log-level=debug"},
		{"--verbose", 3, `"msg":"fine"`, "--verbose=true"},
		{"--verbose --log-level=error", 1, `"msg":"bad"`, "--log-level=error --verbose=true"},
	} {
		given, text, code := logs(t, strings.Fields(test.args)...)
		if code != 0 || strings.Count(text, "\n") != test.lines || !strings.Contains(text, test.has) || strings.Contains(text, "\x1b") || given != test.given {
			t.Errorf("%s: exit code %d, want %d lines with %s:\n%s\npassed on is %q, want %q", test.args, code, test.lines, test.has, text, given, test.given)
		}
	}
	for args, says := range map[string]string{"--log-level=loud": "want one of debug, info, warn, error", "--log-format=xml": "want one of auto, text, json"} {
		if out, _, code := logs(t, args); code != 2 || !strings.Contains(out, says) {
			t.Errorf("%s: exit code %d, %q", args, code, out)
		}
	}
}

// terminal returns a terminal, which nobody reads.
func terminal(t *testing.T) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	slave, openErr := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err := errors.Join(err, openErr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return slave
}

func TestAProgramIsToldTheFormatThatATerminalHasChosen(t *testing.T) {
	for args, want := range map[string]string{
		"":                                   "--log-format=text",
		"--log-format=auto":                  "--log-format=text",
		"--log-format=text --log-level=warn": "--log-level=warn --log-format=text",
		"--log-format=json":                  "--log-format=json",
	} {
		cmd := program(strings.Fields(args)...)
		cmd.Stderr = terminal(t)
		if out, err := cmd.Output(); err != nil || string(out) != want {
			t.Errorf("on a terminal, with %q, it passes on %q, %v, want %q", args, out, err, want)
		}
	}
}
