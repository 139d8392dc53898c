package process_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// role names, in the environment, what this test binary does as a child. Each child says one line when it is ready,
// and ends when its standard input does.
const role = "FAIRLEAD_TEST_ROLE"

func init() {
	if os.Getenv(role) == "headless" {
		runtime.LockOSThread() // main gets the first thread
	}
}

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // 1000 otherwise, in each child
		warmUp()
		os.Exit(m.Run())
	case "wait":
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
	case "parent":
		parent()
	case "reaper":
		reap()
	case "dial":
		dial()
	case "headless":
		headless()
	}
}

// warmUp lets the runtime open what it keeps open, so that tests can count descriptors.
func warmUp() {
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	r.Close()
	w.Close()
}

// parent starts a child of its own, and tells its number.
func parent() {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), role+"=wait")
	cmd.Stdin = os.Stdin
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	bufio.NewReader(out).ReadString('\n')
	fmt.Println(cmd.Process.Pid)
	cmd.Wait()
}

// dial connects to the socket of its first argument.
func dial() {
	conn, err := net.Dial("unix", os.Args[1])
	fmt.Println("ready", err)
	io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(conn)
}

// orphan starts a child without input whose parent is gone, and tells its number.
func orphan() {
	cmd := exec.Command("/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!")
	number, err := cmd.Output()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(string(number))
}

// headless ends its first thread only.
func headless() {
	go func() {
		for {
			if text, _ := os.ReadFile("/proc/self/stat"); strings.Contains(string(text), ") Z ") {
				break
			}
		}
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
}

// A child is a process that a test started.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	said   string // the line it said when it was ready
	waited bool
}

// start runs program, as role says, and waits until it is ready.
func start(t *testing.T, program, as string, args ...string) *child {
	t.Helper()
	return startWith(t, nil, program, as, args...)
}

// startWith is start with attributes of the test's own.
func startWith(t *testing.T, attr *syscall.SysProcAttr, program, as string, args ...string) *child {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), role+"="+as)
	cmd.SysProcAttr = attr
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd, stdin: stdin}
	t.Cleanup(func() { c.end() })
	said, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the child says nothing: %v", err)
	}
	c.said = strings.TrimSpace(said)
	return c
}

func startChild(t *testing.T, as string, args ...string) *child {
	t.Helper()
	return start(t, "/proc/self/exe", as, args...)
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill sends SIGKILL, and does not wait for the child.
func (c *child) kill(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// end kills the child if it lives, and waits for it.
func (c *child) end() {
	if c.waited {
		return
	}
	c.waited = true
	c.stdin.Close()
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

// leavesNothing checks at the end of the test that no descriptor, goroutine or child is left.
func leavesNothing(t *testing.T) {
	t.Helper()
	descriptors, goroutines := countDescriptors(t), runtime.NumGoroutine()
	t.Cleanup(func() {
		within(t, "descriptors are left", func() bool { return countDescriptors(t) <= descriptors })
		within(t, "goroutines are left", func() bool { return runtime.NumGoroutine() <= goroutines })
		if _, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
			t.Errorf("a child is left: wait4 says %v", err)
		}
	})
}

func countDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// within polls until done, for what has no event to wait for.
func within(t *testing.T, otherwise string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Error(otherwise)
			return
		}
	}
}

func open(t *testing.T, pid int) *process.Handle {
	t.Helper()
	h, err := process.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
