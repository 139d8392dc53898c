package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
)

// TestScripts runs what testdata/script says of the commands, each script with a folder and a socket of its own. Beside testscript's commands there are:
//
//	exits CODE PROGRAM [ARG ...]         runs a program, whose exit code must be CODE
//	ready                                waits until a broker answers
//	await FILE                           waits until a file is there
//	until PATH VALUE PROGRAM [ARG ...]   runs a program until its output has VALUE at PATH, as with json
//	json PATH [VALUE]                    the last output is JSON of version 1 with a value at PATH, as sessions.0.id; it must be VALUE if that is given
//	keys PATH KEY [KEY ...]              the last output is JSON with an object at PATH that has these keys
//	capture NAME PATH                    sets a variable to the value at PATH of the last output
func TestScripts(t *testing.T) {
	w := newWorld(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Vars = append(env.Vars,
				"PATH="+stage.Programs+":"+os.Getenv("PATH"), "SELF="+self(),
				"FAIRLEAD_SOCKET="+filepath.Join(env.WorkDir, "b.sock"),
				"GORACE=atexit_sleep_ms=0 log_path="+filepath.Join(w.dir, "race"), // also by this nothing can be left behind unseen
			)
			return os.Chmod(env.WorkDir, 0o755) // testscript's folder is for the group to write
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": scriptExits, "ready": scriptReady, "await": scriptAwait, "until": scriptUntil, "json": scriptJSON, "keys": scriptKeys, "capture": scriptCapture,
		},
	})
}

// usage ends a script that uses a command wrongly.
func usage(ts *testscript.TestScript, ok bool, text string) {
	if !ok {
		ts.Fatalf("usage: %s", text)
	}
}

func scriptExits(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 2, "exits CODE PROGRAM [ARG ...]")
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

func scriptReady(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 0, "ready")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := client.Dial(ctx, broker.Endpoint, client.Options{Socket: ts.Getenv("FAIRLEAD_SOCKET")})
	ts.Check(err)
	ts.Check(s.Close())
}

func scriptAwait(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 1, "await FILE")
	path := ts.MkAbs(args[0])
	if !soon(func() bool { _, err := os.Stat(path); return err == nil }) {
		ts.Fatalf("%s is not there within %v", path, patience)
	}
}

func scriptUntil(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 3, "until PATH VALUE PROGRAM [ARG ...]")
	var value any
	var err error
	if !soon(func() bool {
		ts.Check(ts.Exec(args[2], args[3:]...))
		value, err = at(ts, args[0])
		return err == nil && fmt.Sprint(value) == args[1]
	}) {
		ts.Fatalf("%s is %v (%v) after %v, want %s", args[0], value, err, patience, args[1])
	}
}

// at returns the value at a path of standard output.
func at(ts *testscript.TestScript, path string) (any, error) {
	var value any
	if err := json.Unmarshal([]byte(ts.ReadFile("stdout")), &value); err != nil {
		return nil, err
	}
	if whole, _ := value.(map[string]any); whole["version"] != 1.0 {
		return nil, fmt.Errorf("version %v, want 1", whole["version"])
	}
	for part := range strings.SplitSeq(path, ".") {
		switch v := value.(type) {
		case map[string]any:
			member, there := v[part]
			if !there {
				return nil, fmt.Errorf("%s: no %q in %v", path, part, v)
			}
			value = member
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(v) {
				return nil, fmt.Errorf("%s: no %q in a list of %d", path, part, len(v))
			}
			value = v[i]
		default:
			return nil, fmt.Errorf("%s: %v has no members", path, value)
		}
	}
	return value, nil
}

func scriptJSON(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, len(args) == 1 || len(args) == 2, "json PATH [VALUE]")
	value, err := at(ts, args[0])
	if err == nil && len(args) == 2 && fmt.Sprint(value) != args[1] {
		err = fmt.Errorf("%s is %v, want %s", args[0], value, args[1])
	}
	if neg == (err == nil) {
		ts.Fatalf("json %v: %v", args, err)
	}
}

func scriptKeys(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 2, "keys PATH KEY [KEY ...]")
	for _, key := range args[1:] {
		_, err := at(ts, args[0]+"."+key)
		ts.Check(err)
	}
}

func scriptCapture(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 2, "capture NAME PATH")
	value, err := at(ts, args[1])
	ts.Check(err)
	ts.Setenv(args[0], fmt.Sprint(value))
}
