package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
	"github.com/fairlead-dev/fairlead/services/network"
)

// A world is what one test has to itself: a folder with a broker's socket, and the processes that it has started.
type world struct {
	t         *testing.T
	dir       string
	socket    string
	networks  []string // NAME=PREFIX
	builtIn   bool     // the network service is as without a service file
	brokerd   string   // the program
	processes []*process
	broker    *process // the last one started
}

// newWorld returns a world without any process yet. When the test ends, everything in it is ended, and nothing may be left.
func newWorld(t *testing.T, networks ...string) *world {
	t.Helper()
	goroutines, descriptors := runtime.NumGoroutine(), countDescriptors(t)
	dir, err := os.MkdirTemp("", "e2e-") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, socket: filepath.Join(dir, "b.sock"), networks: networks, brokerd: stage.Program("brokerd")}
	t.Cleanup(func() {
		w.end()
		if !soon(func() bool { return runtime.NumGoroutine() <= goroutines }) {
			stacks := make([]byte, 1<<20)
			t.Errorf("goroutines are left: %d, before %d\n%s", runtime.NumGoroutine(), goroutines, stacks[:runtime.Stack(stacks, true)])
		}
		if !soon(func() bool { return countDescriptors(t) <= descriptors }) {
			t.Errorf("descriptors are left: %d, before %d", countDescriptors(t), descriptors)
		}
		if t.Failed() && w.broker != nil {
			t.Logf("the end of the last broker's and its network service's log:\n%s", w.broker.stderr.Last(30))
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return w
}

// end ends all processes, and checks that none is left.
func (w *world) end() {
	for _, p := range w.processes {
		if p != w.broker {
			p.kill()
		}
	}
	if w.broker != nil {
		w.stopBroker()
	}
	for _, s := range w.instances() { // one outlives a broker that was killed
		p, err := os.FindProcess(s.PID)
		if err == nil {
			p.Kill()
			p.Release()
		}
	}
	soon(func() bool { return len(stage.Named(w.dir)) == 0 })
	for _, s := range stage.Named(w.dir) {
		w.t.Errorf("left behind: %v", s)
		syscall.Kill(s.PID, syscall.SIGKILL)
	}
	races, _ := filepath.Glob(filepath.Join(w.dir, "race.*"))
	for _, path := range races {
		report, _ := os.ReadFile(path)
		w.t.Errorf("a process has a data race:\n%s", report)
	}
}

// stopBroker stops the broker as an operator does, and checks that it leaves no socket.
func (w *world) stopBroker() {
	w.broker.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-w.broker.done:
	case <-time.After(patience):
		w.t.Errorf("the broker does not stop within %v", patience)
		w.broker.kill()
	}
	state := w.broker.cmd.ProcessState
	if state.Sys().(syscall.WaitStatus).Signaled() {
		return // the test has killed it
	}
	if _, err := os.Lstat(w.socket); !state.Success() || err == nil {
		w.t.Errorf("the broker ended with %v, and its socket is there: %v", state, err == nil)
	}
}

// environ is the environment of all that is started. A process of the race detector's would sleep for a second at its exit.
func (w *world) environ() []string {
	return append(os.Environ(), "FAIRLEAD_SOCKET="+w.socket, "GORACE=atexit_sleep_ms=0 log_path="+filepath.Join(w.dir, "race"))
}

func countDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// soon waits for what has no event to wait for, and reports whether it came. It looks less and less often.
func soon(ok func() bool) bool {
	deadline := time.Now().Add(patience)
	for pause := time.Millisecond; !ok(); pause = min(2*pause, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
		<-time.After(pause)
	}
	return true
}

// eventually is soon for what must come.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !soon(ok) {
		t.Fatalf("not within %v: %s", patience, what)
	}
}

// startBroker starts brokerd with the world's networks, and with variables of its own, and waits until it listens.
func (w *world) startBroker(env ...string) *process {
	w.t.Helper()
	cmd := w.serve()
	cmd.Env = env
	w.broker = w.start(cmd)
	w.broker.stderr.await(w.t, "broker started")
	return w.broker
}

func (w *world) serve() *exec.Cmd {
	args := []string{"serve", "--socket", w.socket, "--config-dir", w.config()}
	for _, n := range w.networks {
		args = append(args, "--network", n)
	}
	return exec.Command(w.brokerd, args...)
}

// config returns a configuration folder in which the network service, which tests kill more often than faults do, is started again without a pause, unless it is to be
// as it is built in.
func (w *world) config() string {
	w.t.Helper()
	folder := filepath.Join(w.dir, "config")
	file := filepath.Join(folder, "services.d", "network.toml")
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil && !w.builtIn {
		err = os.WriteFile(file, []byte("name = \"fairlead.network\"\nthrottle_interval = \"1ms\"\n"), 0o644)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return folder
}

// run starts broker-run.
func (w *world) run(args ...string) *process {
	w.t.Helper()
	return w.start(exec.Command(stage.Program("broker-run"), args...))
}

// role starts this test's program in a role.
func (w *world) role(name string, args ...string) *process {
	w.t.Helper()
	cmd := exec.Command(self(), args...)
	cmd.Env = []string{roleVariable + "=" + name}
	return w.start(cmd)
}

// self is the path of this test's program, which also exists in a container.
func self() string {
	path, err := os.Executable()
	if err != nil {
		panic(err) // /proc is there, or nothing here works
	}
	return path
}

// ctl runs brokerctl and returns what it printed and its exit code.
func (w *world) ctl(args ...string) (stdout, stderr string, code int) {
	w.t.Helper()
	p := w.start(exec.Command(stage.Program("brokerctl"), args...))
	code = p.exit(w.t)
	return p.stdout.whole(w.t), p.stderr.whole(w.t), code
}

// ctlJSON runs brokerctl with --json, which must succeed, and returns the value of the named field.
func ctlJSON[T any](w *world, field string, args ...string) T {
	w.t.Helper()
	out, errs, code := w.ctl(append(args, "--json")...)
	if code != 0 {
		w.t.Fatalf("brokerctl %v: exit code %d: %s", args, code, errs)
	}
	return decode[T](w.t, field, out)
}

func decode[T any](t *testing.T, field, out string) (value T) {
	t.Helper()
	var fields map[string]json.RawMessage
	err := json.Unmarshal([]byte(out), &fields)
	if err == nil && string(fields["version"]) != "1" {
		err = fmt.Errorf("version %s, want 1", fields["version"])
	}
	if err == nil {
		err = json.Unmarshal(fields[field], &value)
	}
	if err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return value
}

// leases asks brokerctl for the leases.
func (w *world) leases() []network.LeaseInfo {
	w.t.Helper()
	return ctlJSON[[]network.LeaseInfo](w, "leases", "lease", "list")
}

// service asks brokerctl for the network service.
func (w *world) service() broker.ServiceInfo {
	w.t.Helper()
	type service struct { // as in the contract: the times are text
		Name, State string
		PID         int
		Instance    int64
	}
	all := ctlJSON[[]service](w, "services", "service", "list")
	i := slices.IndexFunc(all, func(s service) bool { return s.Name == network.Endpoint })
	if i < 0 {
		w.t.Fatalf("no network service in %v", all)
	}
	return broker.ServiceInfo{Name: all[i].Name, State: all[i].State, PID: all[i].PID, Instance: all[i].Instance}
}

// instances returns the network services of this world that live.
func (w *world) instances() []stage.Process {
	return slices.DeleteFunc(stage.Named(w.socket), func(s stage.Process) bool {
		return len(s.Args) < 4 || s.Args[1] != "network" || !strings.Contains(strings.Join(s.Args, " "), "--socket "+w.socket)
	})
}

// instance returns the one network service that lives.
func (w *world) instance() watched {
	w.t.Helper()
	all := watch(w.t, w.instances())
	if len(all) != 1 {
		w.t.Fatalf("network services that live: %v, want one", all)
	}
	return all[0]
}

// within returns a context for what must happen while a test waits.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// dial opens a session of this process.
func (w *world) dial(endpoint string) *client.Session {
	w.t.Helper()
	s, err := client.Dial(within(w.t, patience), endpoint, client.Options{Socket: w.socket, Title: "e2e"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	return s
}
