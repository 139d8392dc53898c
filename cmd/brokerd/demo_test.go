package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// demoDeadline bounds the whole demo, and the wait for its processes to be gone.
const demoDeadline = 90 * time.Second

// nobody is an ordinary user's uid and gid.
const nobody = 65534

// A demoRun is one run of the real demo, in a temporary folder of its own.
type demoRun struct {
	cmd *exec.Cmd
	tmp string
	out string // what it has said
}

// openFolder returns a folder that every user can look into; those of T.TempDir are this user's only.
func openFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "brokerd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newDemo returns a short demo: 32 containers on a network of 29 addresses.
func newDemo(t *testing.T) *demoRun {
	t.Helper()
	d := &demoRun{tmp: filepath.Join(openFolder(t), "tmp")}
	if err := os.Mkdir(d.tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	d.cmd = exec.Command(binary, "demo", "--containers", "32", "--prefix", "10.88.0.0/27")
	d.cmd.Env = append(os.Environ(), "TMPDIR="+d.tmp)
	d.cmd.Dir = "/"
	return d
}

// asOrdinaryUser has the demo run as nobody.
func (d *demoRun) asOrdinaryUser(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can become another user; the other tests run as this one")
	}
	if err := os.Chown(d.tmp, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

// checkNothingLeft waits until no process of the demo is left, and checks that its folder is gone.
func (d *demoRun) checkNothingLeft(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(demoDeadline); ; time.Sleep(5 * time.Millisecond) {
		left := d.processes()
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("processes are left: %q", left)
			break
		}
	}
	entries, err := os.ReadDir(d.tmp)
	if len(entries) > 0 || err != nil {
		t.Errorf("left in the temporary folder: %v (%v)", entries, err)
	}
	d.checkNoCgroupLeft(t)
}

// checkNoCgroupLeft checks that the cgroups of the demo's instances are gone: their names have the hash of the broker's socket.
func (d *demoRun) checkNoCgroupLeft(t *testing.T) {
	t.Helper()
	_, folder, _ := strings.Cut(d.out, ", in ")
	folder, _, ok := strings.Cut(folder, "\n")
	if !ok {
		t.Errorf("the demo does not say where it is: %q", d.out)
	}
	h := fnv.New32a()
	h.Write([]byte(filepath.Join(folder, "broker.sock")))
	filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(e.Name(), fmt.Sprintf("fairlead-%08x-", h.Sum32())) {
			t.Errorf("left behind: %s", path)
		}
		return nil
	})
}

// processes are the live processes that run the demo's program or have its folder in their arguments.
func (d *demoRun) processes() (found []string) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		exe, _ := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if exe == binary || bytes.Contains(args, []byte(d.tmp+"/")) {
			found = append(found, e.Name()+" "+string(bytes.ReplaceAll(args, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// awaitRuntime waits until there is a runtime, so that there is something to leave behind.
func (d *demoRun) awaitRuntime(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(demoDeadline); ; time.Sleep(time.Millisecond) {
		now := d.processes()
		if slices.ContainsFunc(now, func(p string) bool { return strings.Contains(p, "demo runtime") }) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("no runtime is there: %q", now)
			return
		}
	}
}

// show runs the demo to its end and checks that all of it held.
func (d *demoRun) show(t *testing.T) {
	t.Helper()
	defer d.checkNothingLeft(t)
	out, err := d.cmd.CombinedOutput()
	d.out = string(out)
	if err != nil || !bytes.Contains(out, []byte("All of it held.")) || bytes.Contains(out, []byte("FAILED")) {
		t.Errorf("the demo ended with %v:\n%s", err, out)
	}
	if acts := bytes.Count(out, []byte("\n   OK")); acts < 10 {
		t.Errorf("the demo says %d times that something held, want 10 or more:\n%s", acts, out)
	}
	for _, counted := range []string{ // by each broker and network service, at the end of either
		"started 1, killed 0; leases allocated 52, held 20, given back 32\n",
		"open 0, lost 20; network service started 1, killed 1; leases allocated 0, held 0, given back 0\n",
		"open 21, lost 20; network service started 2, killed 1; leases allocated 20, held 20, given back 0\n",
		"opened 1, open 20, lost 0; network service started 0, killed 0; leases allocated 20, held 20, given back 0\n",
	} {
		if !bytes.Contains(out, []byte(counted)) {
			t.Errorf("the metrics have not said %q:\n%s", counted, out)
		}
	}
	if bytes.ContainsAny(out, "\r\x1b") {
		t.Errorf("progress is shown where it cannot be overwritten:\n%q", out)
	}
}

// interrupt runs the demo, sends it a signal once its output contains the text, and checks that it says so and fails.
func (d *demoRun) interrupt(t *testing.T, text string, sig syscall.Signal) {
	t.Helper()
	defer d.checkNothingLeft(t)
	pipe, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for buf := make([]byte, 4096); !strings.Contains(out.String(), text); {
		n, err := pipe.Read(buf)
		out.Write(buf[:n])
		if err != nil {
			t.Errorf("the demo ended before it said %q: %v", text, err)
			break
		}
	}
	d.awaitRuntime(t)
	d.cmd.Process.Signal(sig)
	io.Copy(&out, pipe)
	err = d.cmd.Wait()
	d.out = out.String()
	if code := d.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(out.String(), "Not shown to the end: "+sig.String()) {
		t.Errorf("the interrupted demo ended with %v:\n%s", err, out.String())
	}
}

func TestDemo(t *testing.T) {
	t.Run("holds and leaves nothing", func(t *testing.T) {
		newDemo(t).show(t)
	})
	t.Run("holds and leaves nothing as an ordinary user", func(t *testing.T) {
		d := newDemo(t)
		d.asOrdinaryUser(t)
		d.show(t)
	})
	for _, test := range []struct {
		name     string
		text     string // it is interrupted when it has said this
		sig      syscall.Signal
		ordinary bool
	}{
		{"by Ctrl-C among dying containers", "\n1. ", syscall.SIGINT, false},
		{"by Ctrl-C with live containers", "'brokerctl lease list'", syscall.SIGINT, false},
		{"by Ctrl-C as an ordinary user", "\n1. ", syscall.SIGINT, true},
		{"by SIGTERM when another broker has taken the network service up", "old ids", syscall.SIGTERM, false},
	} {
		t.Run("leaves nothing when interrupted "+test.name, func(t *testing.T) {
			d := newDemo(t)
			if test.ordinary {
				d.asOrdinaryUser(t)
			}
			d.interrupt(t, test.text, test.sig)
		})
	}
	t.Run("refuses what it cannot show", refusesBadFlags)
}

func refusesBadFlags(t *testing.T) {
	for _, args := range [][]string{
		{"--containers", "0"}, {"--prefix", "10.88.0.0/28"}, {"--prefix", "10.88.0.1/24"}, {"--prefix", "fd00::/64"}, {"now"},
	} {
		out, err := exec.CommandContext(t.Context(), binary, append([]string{"demo"}, args...)...).CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 || !bytes.Contains(out, []byte("--help")) {
			t.Errorf("demo %v ended with %v, want 2 and a hint:\n%s", args, err, out)
		}
	}
}
