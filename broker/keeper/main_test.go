package keeper_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/keeper"
)

const (
	patience = 20 * time.Second // how long an event may take
	roleVar  = "KEEPER_TEST_ROLE"
	configs  = "KEEPER_TEST_CONFIG"
	markVar  = "KEEPER_TEST_MARK" // is in the environment of all that a program starts
)

func TestMain(m *testing.M) {
	if os.Getenv(roleVar) == "broker" {
		playBroker()
		return
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // 1000 otherwise
	// The runtime opens what it keeps open, so that tests can count descriptors.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	os.Exit(m.Run())
}

// playBroker starts a program, says its record, and waits to be killed.
func playBroker() {
	var c keeper.Config
	err := json.Unmarshal([]byte(os.Getenv(configs)), &c)
	var k *keeper.Keeper
	if err == nil {
		k, err = keeper.Start(context.Background(), c)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(k.Record())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	time.Sleep(time.Hour) // without a keeper nothing else would wait, which the runtime takes for a deadlock
}

// A broker is a process that has started a program.
type broker struct {
	cmd    *exec.Cmd
	record keeper.Record
}

// startBroker starts a process that starts a program.
func startBroker(t *testing.T, c keeper.Config) *broker {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{cmd: exec.Command("/proc/self/exe")}
	b.cmd.Env = append(os.Environ(), roleVar+"=broker", configs+"="+string(text))
	b.cmd.Stderr = os.Stderr
	out, err := b.cmd.StdoutPipe()
	if err == nil {
		err = b.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.kill)
	late := time.AfterFunc(patience, b.kill)
	defer late.Stop()
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&b.record); err != nil {
		t.Fatalf("the process that starts a program: %v", err)
	}
	return b
}

// kill kills the broker, and waits for it.
func (b *broker) kill() {
	b.cmd.Process.Kill()
	b.cmd.Wait()
}

// shell is a program that is a shell's script, marked so that family finds all it starts, and with a log of its own.
func shell(t *testing.T, script string) keeper.Config {
	t.Helper()
	return keeper.Config{
		Program:     []string{"/bin/sh", "-c", script},
		Environment: []string{"PATH=/usr/bin:/bin", markVar + "=" + rand.Text()},
		Log:         filepath.Join(t.TempDir(), "log"),
		Umask:       0o022,
	}
}

// start starts a program, which is gone when the test is over.
func start(t *testing.T, c keeper.Config) *keeper.Keeper {
	t.Helper()
	k, err := keeper.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, k) })
	return k
}

// adopt adopts a program, which is gone when the test is over.
func adopt(t *testing.T, r keeper.Record) *keeper.Keeper {
	t.Helper()
	k, err := keeper.Adopt(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, k) })
	return k
}

func end(t *testing.T, k *keeper.Keeper) {
	k.Kill()
	wait(t, "the end of all", k.Gone())
	k.Close()
}

// wait waits for an event.
func wait[T any](t *testing.T, what string, c <-chan T) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Errorf("not within %v: %s", patience, what)
	}
}

// until waits for what has no event.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// outcome waits for the program's end.
func outcome(t *testing.T, k *keeper.Keeper) keeper.Outcome {
	t.Helper()
	wait(t, "the program's end", k.Ended())
	return k.Outcome()
}

// text reads a file. One that is not there is empty.
func text(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}

// says waits until the log has a text.
func says(t *testing.T, c keeper.Config, what string) {
	t.Helper()
	until(t, "the log says "+what, func() bool { return strings.Contains(text(c.Log), what) })
}

// members returns the live processes that were started by a program of that config. The keeper is none of them.
func members(c keeper.Config) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && slices.Contains(strings.Split(text(proc(pid, "environ")), "\x00"), c.Environment[len(c.Environment)-1]) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// family returns their names.
func family(c keeper.Config) (names []string) {
	for _, pid := range members(c) {
		names = append(names, strings.TrimSpace(text(proc(pid, "comm"))))
	}
	return names
}

func proc(pid int, name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }

// daemons is a script that starts n processes, each in a session of its own, whose parent is gone and that ignore SIGTERM, and then says so.
func daemons(n int) string {
	return fmt.Sprintf(`trap '' TERM HUP; for i in $(seq %d); do (setsid sleep 1000 &); done; trap - TERM; echo started; `, n)
}

// running waits until n daemons of a program run.
func running(t *testing.T, c keeper.Config, n int) {
	t.Helper()
	says(t, c, "started")
	until(t, "the daemons run", func() bool {
		return len(slices.DeleteFunc(family(c), func(name string) bool { return name != "sleep" })) >= n
	})
}

// ownCgroup returns the folder of a cgroup that is not there yet, and checks at the end that it is not there again.
func ownCgroup(t *testing.T) string {
	t.Helper()
	folder, err := keeper.Cgroups()
	if err != nil {
		t.Skip("no cgroups may be made here: ", err)
	}
	folder = filepath.Join(folder, "fairlead-test-"+rand.Text())
	t.Cleanup(func() {
		if _, err := os.Stat(folder); err == nil {
			t.Errorf("the cgroup %s is left", folder)
		}
	})
	return folder
}

// leavesNothing checks at the end of the test that no descriptor, goroutine or child is left.
func leavesNothing(t *testing.T) {
	t.Helper()
	files, goroutines := descriptors(t), runtime.NumGoroutine()
	t.Cleanup(func() {
		until(t, "no descriptor is left", func() bool { return descriptors(t) <= files })
		until(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= goroutines })
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
			t.Errorf("a child is left: %d, %v", pid, err)
		}
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// asRoot skips a test that needs it.
func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
}

// sweep kills what a killed keeper has left of a program.
func sweep(t *testing.T, c keeper.Config) {
	t.Helper()
	until(t, "nothing is left", func() bool {
		pids := members(c)
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(pids) == 0
	})
}
