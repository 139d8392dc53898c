package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	brokerctl "github.com/fairlead-dev/fairlead/cmd/brokerctl"
	"github.com/fairlead-dev/fairlead/services"
)

// patience is how long an event may take.
const patience = 20 * time.Second

// roleVariable has the test's own program play a process that a test needs: "echo" and "typed" are services, "brokerctl" is the command.
const roleVariable = "BROKERCTL_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "echo":
		os.Exit(serveEcho())
	case "typed":
		os.Exit(serveTyped())
	case "brokerctl":
		os.Exit(brokerctl.Run(os.Args[1:], os.Stdout, os.Stderr))
	}
	// The runtime begins and opens what it goes on with, so that tests can count goroutines and descriptors.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	_, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	stop()
	os.Exit(m.Run())
}

// serveEcho serves the endpoint that is its argument.
func serveEcho() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println("echo begins")
	server := services.Server{Endpoints: map[string]*services.Mux{os.Args[1]: services.NewMux()}}
	if err := server.Serve(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// echo is the name and the endpoint of a service that works.
const echo = "com.example.echo"

// A world is a broker with service files of the test's own.
type world struct {
	*testing.T
	folder string
	broker *brokertest.Broker
}

// newWorld starts a broker with service files, by their names without ".toml". When the test ends, nothing of it may be left.
func newWorld(t *testing.T, files map[string]string) *world {
	t.Helper()
	w := &world{T: t, folder: t.TempDir()}
	goroutines, descriptors := runtime.NumGoroutine(), w.count("/proc/self/fd")
	t.Cleanup(func() {
		w.until("all goroutines, descriptors and processes are gone", func() bool {
			return runtime.NumGoroutine() <= goroutines && w.count("/proc/self/fd") <= descriptors && !w.lives()
		})
	})
	w.must(os.Mkdir(filepath.Join(w.folder, "services.d"), 0o755))
	for name, text := range files {
		w.write(name, text)
	}
	w.broker = brokertest.StartWith(t, broker.Config{
		Load: func() ([]servicefile.Service, []*servicefile.Problem) { return servicefile.Load(w.folder) },
	})
	return w
}

func (w *world) count(folder string) int {
	w.Helper()
	entries, err := os.ReadDir(folder)
	w.must(err)
	return len(entries)
}

// lives reports whether a process that the broker has started lives.
func (w *world) lives() bool {
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	w.must(err)
	return slices.ContainsFunc(environments, func(path string) bool {
		environment, _ := os.ReadFile(path) // it may be gone, and then it is none
		return strings.Contains(string(environment), w.broker.Socket+"\x00")
	})
}

func (w *world) must(errs ...error) {
	w.Helper()
	if err := errors.Join(errs...); err != nil {
		w.Fatal(err)
	}
}

// path returns the path of a service file.
func (w *world) path(name string) string { return filepath.Join(w.folder, "services.d", name+".toml") }

func (w *world) write(name, text string) {
	w.Helper()
	w.must(os.WriteFile(w.path(name), []byte(text), 0o644))
}

// working is the service file of echo, with more lines of its own.
func working(t *testing.T, more string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("name = %q\nprogram = [%q, %q]\nenvironment = { %s = \"echo\", GORACE = \"atexit_sleep_ms=0\" }\n%s\n", echo, self, echo, roleVariable, more)
}

// shell is the service file of a shell script, which never registers, with more lines of its own.
func shell(name, script, more string) string {
	return fmt.Sprintf("name = %q\nprogram = [\"/bin/sh\", \"-c\", %q]\n%s\n", name, script, more)
}

// An outcome is what came of a command.
type outcome struct {
	out, errs string
	code      int
}

// ctl runs brokerctl with the words of a line.
func (w *world) ctl(line string) outcome {
	var out, errs strings.Builder
	code := brokerctl.Run(append(strings.Fields(line), "--socket", w.broker.Socket), &out, &errs)
	return outcome{out.String(), errs.String(), code}
}

// done is ctl for what must succeed, and returns what it printed.
func (w *world) done(line string) string {
	w.Helper()
	o := w.ctl(line)
	if o.code != 0 || o.errs != "" {
		w.Fatalf("brokerctl %s: exit code %d, %s", line, o.code, o.errs)
	}
	return o.out
}

// member runs a command with --json, and returns the value under a name.
func (w *world) member(name, line string) any {
	w.Helper()
	var value map[string]any
	w.must(json.Unmarshal([]byte(w.done(line+" --json")), &value))
	if value["version"] != 1.0 || value[name] == nil {
		w.Fatalf("brokerctl %s: %v", line, value)
	}
	return value[name]
}

// details runs a command with --json, and returns the service that it prints.
func (w *world) details(line string) map[string]any {
	w.Helper()
	return w.member("service", line).(map[string]any)
}

// program returns brokerctl as a process of its own.
func (w *world) program(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append(args, "--socket", w.broker.Socket)...)
	cmd.Env = append(os.Environ(), roleVariable+"=brokerctl", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// until waits until something holds.
func (w *world) until(what string, holds func() bool) {
	w.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("not within %v: %s", patience, what)
		}
	}
}
