package runner_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/services/runner"
)

// The test binary plays other parts too, by these variables.
const (
	roleVar    = "FAIRLEAD_TEST_ROLE"    // what main does instead of testing
	settingVar = "FAIRLEAD_TEST_SETTING" // the setting in which TestEverySetting runs the others
	markVar    = "FAIRLEAD_TEST_MARK"    // marks every process of one container
)

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVar); role {
	case "":
		os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // 1000 otherwise
		os.Exit(testAndCheck(m))
	case "runner":
		os.Exit(playRunner())
	case "signals":
		os.Exit(playSignals())
	case "limited":
		fmt.Fprintln(os.Stderr, playLimited())
		os.Exit(1)
	default:
		panic("role " + role)
	}
}

// playRunner is a program that runs its arguments in a container, as anybody would write it.
func playRunner() int {
	os.Unsetenv(roleVar)
	if role := os.Getenv("FAIRLEAD_TEST_INNER_ROLE"); role != "" {
		os.Setenv(roleVar, role)
	}
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, runner.Signals()...)
	c, err := runner.Prepare(cmd, options())
	if err == nil {
		var forwarding sync.WaitGroup
		forwarding.Go(func() { c.Forward(signals) })
		err = c.Run(context.Background())
		forwarding.Wait()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return runner.ExitStatus(err)
}

// playSignals prints the signals it gets, until SIGUSR2.
func playSignals() int {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH)
	fmt.Println("ready")
	for sig := range signals {
		fmt.Println(unix.SignalName(sig.(syscall.Signal)))
		if sig == unix.SIGUSR2 {
			return 0
		}
	}
	return 1
}

// playLimited takes the namespaces away from its user namespace and then tests.
func playLimited() error {
	for _, kind := range []string{"user", "pid", "mnt"} {
		if err := os.WriteFile("/proc/sys/user/max_"+kind+"_namespaces", []byte("0"), 0); err != nil {
			return err
		}
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	os.Unsetenv(roleVar)
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// testAndCheck runs the tests and then looks for what they left behind.
func testAndCheck(m *testing.M) int {
	before := descriptors()
	code := m.Run()
	var problem string
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		problem = leftovers(before)
		if problem == "" {
			return code
		}
		if time.Now().After(deadline) {
			fmt.Println("the tests left behind:", problem)
			return max(code, 1)
		}
	}
}

func leftovers(before []string) string {
	if n := runtime.NumGoroutine(); n > 2 { // this one, and os/signal's, which never ends
		stacks := make([]byte, 1<<16)
		return fmt.Sprintf("%d goroutines\n%s", n, stacks[:runtime.Stack(stacks, true)])
	}
	if now := descriptors(); !slices.Equal(now, before) {
		return fmt.Sprintf("descriptors %v, before %v", now, before)
	}
	var status syscall.WaitStatus
	if pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil); err != syscall.ECHILD {
		return fmt.Sprintf("child process (%d, %v)", pid, err)
	}
	return ""
}

// descriptors lists what is open, but for the Go runtime's own.
func descriptors() []string {
	entries, _ := os.ReadDir("/proc/self/fd")
	var open []string
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !strings.HasPrefix(target, "anon_inode:[event") {
			open = append(open, e.Name()+" "+target)
		}
	}
	return open
}

// keeper reports whether the tests run where no namespaces are permitted.
func keeper() bool { return strings.HasSuffix(os.Getenv(settingVar), "keeper") }

func options() runner.Options {
	if keeper() {
		return runner.Options{Contain: runner.Best}
	}
	return runner.Options{}
}

func prepare(t *testing.T, cmd *exec.Cmd, o runner.Options) *runner.Container {
	t.Helper()
	if o.Contain == "" {
		o.Contain = options().Contain
	}
	c, err := runner.Prepare(cmd, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// start runs c beside the test and returns where its error will be.
func start(t *testing.T, ctx context.Context, c *runner.Container) <-chan error {
	result := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		result <- c.Run(ctx)
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return result
}

func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not come within %v", what, patience)
		panic("unreachable")
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// marked gives cmd an environment by which family finds all it starts.
func marked(cmd *exec.Cmd) (mark string) {
	mark = markVar + "=" + rand.Text()
	cmd.Env = append(cmd.Environ(), mark)
	return mark
}

// A member is one live process of a marked container.
type member struct {
	pid  int
	name string
}

func family(mark string) []member {
	var members []member
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if slices.Contains(strings.Split(string(env), "\x00"), mark) {
			name, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "comm"))
			members = append(members, member{pid, strings.TrimSpace(string(name))})
		}
	}
	return members
}

// named returns the members of the marked container with this name.
func named(mark, name string) []member {
	return slices.DeleteFunc(family(mark), func(m member) bool { return m.name != name })
}

func shell(script string) *exec.Cmd {
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Stderr = os.Stderr
	return cmd
}

// daemons is a script that starts n processes, each in a session of its own, with a parent
// that is gone, and deaf to SIGTERM.
func daemons(n int) string {
	return fmt.Sprintf(`trap '' TERM HUP; i=0; while [ $i -lt %d ]; do (setsid sleep 1000 &); i=$((i+1)); done; `, n)
}
