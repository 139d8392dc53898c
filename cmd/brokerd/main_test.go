package main_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/fairlead-dev/fairlead/services"
)

// patience is how long a test waits for what must happen. No test measures with it.
const patience = 30 * time.Second

// echoVariable has this test's program serve an endpoint of that name, which says who serves it.
const echoVariable = "BROKERD_TEST_ECHO"

// noSleep is what GORACE says.
const noSleep = "atexit_sleep_ms=0"

// binary is brokerd, where every user can run it.
var binary string

func TestMain(m *testing.M) {
	if endpoint := os.Getenv(echoVariable); endpoint != "" {
		if err := serveEcho(endpoint); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	folder, err := os.MkdirTemp("", "brokerd-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(folder)
	if err := os.Chmod(folder, 0o755); err != nil {
		return 1, err
	}
	// A program of the race detector's would sleep for a second at its exit.
	if err := os.Setenv("GORACE", noSleep); err != nil {
		return 1, err
	}
	if binary, err = build(folder, "."); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// build builds a command of this module into a folder and returns its path.
func build(folder, command string) (string, error) {
	args := []string{"build", "-o", folder + "/"}
	if underRace() {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, command)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", command, err, out)
	}
	name := filepath.Base(command)
	if name == "." {
		name = "brokerd"
	}
	path := filepath.Join(folder, name)
	return path, os.Chmod(path, 0o755)
}

// underRace reports whether the tests run under the race detector, so that what they run does too.
func underRace() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// serveEcho serves an endpoint until it is told to stop.
func serveEcho(endpoint string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	mux := services.NewMux()
	services.Handle(mux, "pid", func(context.Context, any) (int, error) { return os.Getpid(), nil })
	return services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}}.Serve(ctx)
}

// TestScripts runs what testdata/script says of brokerd, each script in a folder of its own. Beside testscript's commands there is:
//
//	exits CODE PROGRAM [ARG ...]   runs a program, whose exit code must be CODE
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Vars = append(env.Vars, "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"), "GORACE="+noSleep)
			return private(env.WorkDir)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": scriptExits},
	})
}

// private has nobody else write what testscript has unpacked, as service files want it.
func private(folder string) error {
	return filepath.Walk(folder, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Chmod(path, info.Mode().Perm()&^0o022)
	})
}

func scriptExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARG ...]")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("run %s: %v", args[1], err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("%v exits %d, want %s\n%s%s", args[1:], code, args[0], ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}
