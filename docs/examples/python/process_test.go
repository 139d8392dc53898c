package python_test

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what must happen. No test measures with it.
const patience = 30 * time.Second

// A process is a program that a test runs, in Python or not.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr strings.Builder
	ended  bool
}

// python starts python3 with the modules of this folder. It must be there in CI.
func python(t *testing.T, socket string, args ...string) *process {
	t.Helper()
	path, err := exec.LookPath("python3")
	switch {
	case err != nil && os.Getenv("CI") != "":
		t.Fatal("there is no python3 to test with")
	case err != nil:
		t.Skip("there is no python3 to test with")
	}
	p := start(t, path, append(os.Environ(), "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1", "FAIRLEAD_SOCKET="+socket), args...)
	late := time.AfterFunc(2*patience, func() { p.cmd.Process.Kill() }) // whatever it hangs in
	t.Cleanup(func() { late.Stop() })
	return p
}

// script starts a program of Python's, in which s is a session with the endpoint, of 30 s at most.
func script(t *testing.T, socket string, lines ...string) *process {
	t.Helper()
	head := []string{"import fairlead, os", "s = fairlead.connect('" + endpoint + "', timeout=30)"}
	return python(t, socket, "-c", strings.Join(append(head, lines...), "\n"))
}

// start starts a program. It is killed with the test.
func start(t *testing.T, path string, environ []string, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{t: t, cmd: exec.CommandContext(ctx, path, args...)}
	p.cmd.Env, p.cmd.Stderr = environ, &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdout = bufio.NewReader(stdout)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		p.wait()
		if t.Failed() {
			t.Logf("%v: %v\n%s", args, p.cmd.ProcessState, p.stderr.String())
		}
	})
	return p
}

// line returns the next line of the process's standard output.
func (p *process) line() string {
	p.t.Helper()
	line, err := p.stdout.ReadString('\n')
	if err != nil {
		p.t.Fatalf("read its next line: %q, %v", line, err)
	}
	return strings.TrimSuffix(line, "\n")
}

// end waits for the end of the process, which must have this exit code, and returns what else it wrote to its standard output.
func (p *process) end(code int) string {
	p.t.Helper()
	rest, _ := io.ReadAll(p.stdout)
	p.wait()
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Fatalf("%v, want exit code %d", p.cmd.ProcessState, code)
	}
	return strings.TrimSuffix(string(rest), "\n")
}

// signal sends a signal to the process, by its id.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("signal %v: %v", s, err)
	}
}

func (p *process) wait() {
	if !p.ended {
		p.ended = true
		p.cmd.Wait() // its state says more
	}
}

// leavesNothing checks, when the test is over, that it has left no descriptor and no goroutine.
func leavesNothing(t *testing.T) {
	t.Helper()
	before := debug.SetGCPercent(-1)        // the garbage collector would close what a fault leaves open
	if r, w, err := os.Pipe(); err == nil { // the first file that can be waited for brings the runtime's poller, which stays
		r.Close()
		w.Close()
	}
	files, goroutines := descriptors(t), runtime.NumGoroutine()
	t.Cleanup(func() {
		defer debug.SetGCPercent(before)
		for late := time.Now().Add(patience); descriptors(t) > files || runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
			if time.Now().After(late) {
				stacks := make([]byte, 16<<10)
				t.Fatalf("%d descriptors, want %d, and %d goroutines, want %d:\n%s",
					descriptors(t), files, runtime.NumGoroutine(), goroutines, stacks[:runtime.Stack(stacks, true)])
			}
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
