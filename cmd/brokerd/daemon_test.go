package main_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
)

// A place is where one test's brokers are: a folder with their socket and their configuration.
type place struct {
	t      *testing.T
	dir    string
	socket string
}

// newPlace returns a place without a broker. When the test ends, no process that knows the place may be left.
func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{t: t, dir: openFolder(t)}
	p.socket = filepath.Join(p.dir, "b.sock")
	if err := os.Mkdir(filepath.Join(p.dir, "services.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !soon(func() bool { return len(p.processes()) == 0 }) {
			t.Errorf("processes are left: %v", p.processes())
			for pid := range p.processes() {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	return p
}

// processes are those that run brokerd, as keepers do, or know the place by an argument or a variable.
func (p *place) processes() map[int]string {
	found := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		exe, _ := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if exe == binary || bytes.Contains(args, []byte(p.dir)) || bytes.Contains(environ, []byte(p.dir)) {
			found[pid] = string(bytes.ReplaceAll(args, []byte{0}, []byte{' '}))
		}
	}
	return found
}

// write writes a service file.
func (p *place) write(name, text string) {
	p.t.Helper()
	path := filepath.Join(p.dir, "services.d", name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// echo writes the file of a service that this test's program serves.
func (p *place) echo(name, more string) {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(name+".toml", fmt.Sprintf("name = %q\nprogram = [%q]\n%s\n[environment]\n%s = %q\nGORACE = %q\n", name, self, more, echoVariable, name, noSleep))
}

// command is a broker's command line.
func (p *place) command(args ...string) []string {
	return append([]string{binary, "serve", "--socket", p.socket, "--config-dir", p.dir}, args...)
}

// serve starts a broker and waits until it serves.
func (p *place) serve(args ...string) *daemon {
	p.t.Helper()
	argv := p.command(args...)
	d := start(p.t, exec.Command(argv[0], argv[1:]...))
	d.await("broker started", 1)
	return d
}

// options are those of a client.
func (p *place) options() client.Options { return client.Options{Socket: p.socket, Title: "test"} }

// dial opens a session that ends with the test.
func (p *place) dial(endpoint string) *client.Session {
	p.t.Helper()
	s, err := client.Dial(within(p.t), endpoint, p.options())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { s.Close() })
	return s
}

// inspect asks the broker for a service.
func (p *place) inspect(name string) broker.ServiceDetails {
	p.t.Helper()
	d, err := console.Ask[broker.ServiceDetails](within(p.t), p.options(), broker.MethodService, broker.ServiceRequest{Name: name})
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

// within returns a context for one step of a test.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// soon waits for what has no event to wait for, and reports whether it came.
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

// A daemon is a brokerd that a test has started. It is ended with the test.
type daemon struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{} // closed when it was waited for

	mu    sync.Mutex
	lines []string
	more  chan struct{} // closed and replaced with each line
}

func start(t *testing.T, cmd *exec.Cmd) *daemon {
	t.Helper()
	d := &daemon{t: t, cmd: cmd, done: make(chan struct{}), more: make(chan struct{})}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), cmd.Env...)
	cmd.Stderr = w
	err = cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() { defer close(read); d.read(r) }()
	go func() { cmd.Wait(); close(d.done) }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-d.done
		r.Close() // services may have it, too
		<-read
		if t.Failed() {
			t.Logf("the log of %v:\n%s", cmd.Args, strings.Join(d.log(""), "\n"))
		}
	})
	return d
}

func (d *daemon) read(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		d.mu.Lock()
		d.lines = append(d.lines, lines.Text())
		close(d.more)
		d.more = make(chan struct{})
		d.mu.Unlock()
	}
}

// log returns the lines that contain text.
func (d *daemon) log(text string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.lines), func(line string) bool { return !strings.Contains(line, text) })
}

// await waits for n lines of the log that contain text, and returns the fields of the last.
func (d *daemon) await(text string, n int) map[string]any {
	d.t.Helper()
	for late := time.After(patience); ; {
		d.mu.Lock()
		more := d.more
		d.mu.Unlock()
		if found := d.log(text); len(found) >= n {
			var fields map[string]any
			if err := json.Unmarshal([]byte(found[n-1]), &fields); err != nil {
				d.t.Fatalf("%s: %v", found[n-1], err)
			}
			return fields
		}
		select {
		case <-more:
		case <-late:
			d.t.Fatalf("brokerd has not logged %q %d times within %v", text, n, patience)
		}
	}
}

// exit waits for its end and returns its exit code.
func (d *daemon) exit() int {
	d.t.Helper()
	select {
	case <-d.done:
	case <-time.After(patience):
		d.t.Fatalf("brokerd has not ended within %v", patience)
	}
	return d.cmd.ProcessState.ExitCode()
}

// stop stops it as an operator does.
func (d *daemon) stop() {
	d.t.Helper()
	d.cmd.Process.Signal(syscall.SIGTERM)
	if code := d.exit(); code != 0 {
		d.t.Errorf("brokerd exits %d after SIGTERM", code)
	}
}
