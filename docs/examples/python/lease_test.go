package python_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAKilledPythonGivesItsLeaseBack(t *testing.T) {
	leavesNothing(t)
	dir, err := os.MkdirTemp("", "python-") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	brokerd, socket := filepath.Join(dir, "brokerd"), filepath.Join(dir, "b.sock")
	if out, err := exec.Command("go", "build", "-o", brokerd, "../../../cmd/brokerd").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	broker := start(t, "/bin/sh", os.Environ(), "-c", `exec "$0" "$@" 2>&1`, brokerd, "serve", "--socket", socket, "--network", "default=10.99.0.0/30")
	t.Cleanup(func() {
		broker.cmd.Process.Signal(syscall.SIGTERM) // it may have ended; one that is killed leaves the network service behind
		defer time.AfterFunc(patience, func() { broker.cmd.Process.Kill() }).Stop()
		broker.wait()
	})
	for !strings.Contains(broker.line(), "broker started") {
	}

	holder := python(t, socket, "demo.py", "lease", "web")
	if got := holder.line(); got != "10.99.0.2/30" {
		t.Fatal(got)
	}
	for hostname, code := range map[string]string{"web": "conflict", "": "exhausted"} {
		other := python(t, socket, "demo.py", "lease", hostname)
		other.end(1)
		if got := other.stderr.String(); !strings.HasPrefix(got, "demo.py: "+code+": ") {
			t.Errorf("another lease of %q: %q, want %s", hostname, got, code)
		}
	}
	holder.signal(syscall.SIGKILL)
	holder.wait()

	next := python(t, socket, "demo.py", "lease", "web")
	if got := next.line(); got != "10.99.0.2/30" {
		t.Fatal(got)
	}
	next.signal(syscall.SIGTERM)
	next.end(0)

	last := python(t, socket, "demo.py", "lease")
	last.line()
	broker.signal(syscall.SIGTERM)
	last.end(69)
	broker.end(0)
}
