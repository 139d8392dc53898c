package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// role names, in the environment, what this test binary does as a child.
const role = "FAIRLEAD_TEST_ROLE"

var long = flag.Bool("long", false, "run the tests with their full counts")

// patience is how long an event may take.
const patience = 20 * time.Second

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		warmUp()
		os.Exit(m.Run())
	case "holder":
		holderMain(os.Args[1])
	case "linger":
		io.Copy(io.Discard, os.NewFile(3, "lifeline"))
	case "service":
		serviceMain(os.Args[1], os.Args[2], os.Args[3])
	case "trapped":
		if err := layTrap(); err != nil {
			fmt.Println("no trap:", err)
			return
		}
		fallthrough
	case "copying":
		if len(os.Args) > 5 {
			slack, _ := strconv.Atoi(os.Args[4])
			step, _ := strconv.Atoi(os.Args[5])
			server.Copy(slack, step)
		}
		serviceMain(os.Args[1], os.Args[2], os.Args[3])
	case "mounted":
		mountedMain(os.Args[1], os.Args[2], os.Args[3])
	case "starved":
		starvedMain(os.Args[1], os.Args[2], os.Args[3])
	}
}

// warmUp lets the runtime open what it keeps open, so that tests can count descriptors.
func warmUp() {
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
}

// A service is a Server whose sessions are opened by connecting to its socket, as through a broker.
type service struct {
	*server.Server
	listener *net.UnixListener
	path     string
	serving  sync.WaitGroup

	mu       sync.Mutex
	sessions []*session.Session
}

func listen(path string, c server.Config) (*service, error) {
	srv, err := server.New(c)
	if err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		srv.Close()
		return nil, err
	}
	s := &service{Server: srv, listener: listener, path: path}
	mux := srv.Mux()
	s.serving.Go(func() {
		for {
			conn, err := listener.AcceptUnix()
			if errors.Is(err, syscall.EMFILE) {
				time.Sleep(time.Millisecond) // until there are descriptors again
				continue
			}
			if err != nil {
				return
			}
			raw, _ := conn.SyscallConn()
			handle, cred, _ := process.FromPeer(raw)
			handle.Close()
			ss, err := session.New(conn, session.Config{
				ID: session.NewID(), Endpoint: network.Endpoint, Handler: mux, Peer: wire.Process{PID: cred.PID, UID: cred.UID, GID: cred.GID}, Lane: true,
			})
			if err != nil {
				continue
			}
			s.mu.Lock()
			s.sessions = append(s.sessions, ss)
			s.mu.Unlock()
		}
	})
	return s, nil
}

// session returns the session that was opened after i others.
func (s *service) session(i int) *session.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[i]
}

// end stops the service as its Host would: it drains the sessions and closes the Server.
func (s *service) end() {
	s.listener.Close()
	s.serving.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var draining sync.WaitGroup
	s.mu.Lock()
	for _, ss := range s.sessions {
		draining.Go(func() { ss.Drain(ctx, "the service is being stopped"); ss.Wait() })
	}
	s.mu.Unlock()
	draining.Wait()
	s.Close()
}

// start starts a service in this process that ends with the test.
func start(t testing.TB, c server.Config) *service {
	t.Helper()
	if c.StateDir == "" {
		c.StateDir = filepath.Join(folder(t), "state")
	}
	s, err := listen(filepath.Join(folder(t), "s"), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	return s
}

func networks(t testing.TB, texts ...string) []server.Network {
	t.Helper()
	var list []server.Network
	for _, text := range texts {
		n, err := server.ParseNetwork(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, n)
	}
	return list
}

// dial opens a session with a service.
func dial(path string) (*session.Session, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	return session.New(conn, session.Config{Endpoint: network.Endpoint, Opener: true, Lane: true})
}

func open(t testing.TB, path string) *session.Session {
	t.Helper()
	s, err := dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); s.Wait() })
	return s
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func allocate(t testing.TB, s *session.Session, r network.Request) *network.Lease {
	t.Helper()
	l, err := network.Allocate(within(t, patience), s, r)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func list(t *testing.T, s *session.Session) []network.LeaseInfo {
	t.Helper()
	leases, err := network.List(within(t, patience), s, network.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return leases
}

// until polls, for what has no event to wait for.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// serviceMain is a service in a process of its own, until it is killed or its input ends.
func serviceMain(path, stateDir, text string) {
	signal.Ignore(syscall.SIGXFSZ)
	n, err := server.ParseNetwork(text)
	if err == nil {
		_, err = listen(path, server.Config{Networks: []server.Network{n}, StateDir: stateDir, Socket: path})
	}
	fmt.Println("ready", err)
	io.Copy(io.Discard, os.Stdin)
}

// starvedMain is a service that has no descriptor left when it looks for who could hold an address, until its test gives it some. It looks for the
// process that the broker names or, if suspect is empty, for containers. It prints what it logs.
func starvedMain(path, stateDir, suspect string) {
	listening := make(chan struct{})
	c := server.Config{StateDir: stateDir, Logger: slog.New(slog.NewTextHandler(os.Stdout, nil))}
	var named []int
	if pid, err := strconv.Atoi(suspect); err == nil {
		named = []int{pid}
	} else {
		c.Socket = path
	}
	c.Suspects = func(context.Context) ([]int, error) {
		<-listening
		unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: 1024})
		return named, nil
	}
	n, err := server.ParseNetwork("default=10.9.0.0/24")
	if err == nil {
		c.Networks = []server.Network{n}
		_, err = listen(path, c)
	}
	fmt.Println("ready", err)
	close(listening)
	io.Copy(io.Discard, os.Stdin)
}

// An order is what a holder is told to do.
type order struct {
	Do       string // allocate, ask, linger, hand, list, lookup, release, witness
	Hostname string
	Lease    string
	Witness  int    // the number of a process, as the holder knows it; 0: none
	Space    string // the path of a network namespace that is the witness; empty: none
	Flags    int    // for clone, with linger
	Within   time.Duration
	Token    string   // for ask, which allocates by hand
	Withdraw []string // likewise
}

// An answer is what came of it.
type answer struct {
	PID     int
	Lease   string
	Secret  string
	Address netip.Prefix
	Leases  []string // ids
	Error   *wire.Error
}

// holderMain opens a session and does what it is told.
func holderMain(path string) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := session.New(conn, session.Config{Endpoint: network.Endpoint, Opener: true, Lane: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ready")
	orders, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if orders.Decode(&o) != nil {
			return
		}
		answers.Encode(obey(o, s, conn.(*net.UnixConn)))
	}
}

func obey(o order, s *session.Session, conn *net.UnixConn) (a answer) {
	switch o.Do {
	case "allocate":
		ctx, cancel := context.WithTimeout(context.Background(), o.Within)
		defer cancel()
		var err error
		witness := witnessOf(o.Witness)
		if o.Space != "" {
			if witness, err = os.Open(o.Space); err != nil {
				a.Error = wire.Errorf(wire.Internal, "%v", err)
				return a
			}
			defer witness.Close()
		}
		l, err := network.Allocate(ctx, s, network.Request{Hostname: o.Hostname, Witness: witness})
		if err != nil {
			a.Error = wire.AsError(err)
			return a
		}
		a.Lease, a.Secret, a.Address = l.ID, l.Claim().Secret, l.Addresses[0]
	case "ask":
		ctx, cancel := context.WithTimeout(context.Background(), o.Within)
		defer cancel()
		info, err := client.Call[network.LeaseInfo](ctx, s, network.MethodAllocate, network.AllocateRequest{Token: o.Token, Withdraw: o.Withdraw, Witness: witnessOf(o.Witness)})
		a.Lease, a.Error = info.ID, wire.AsError(err)
	case "linger": // start a process that outlives this one
		a.PID = linger(uintptr(o.Flags))
	case "hand": // start one that keeps this session's socket open too
		file, err := conn.File()
		if err == nil {
			a.PID = linger(0, file)
		}
	default:
		a.Leases, a.Error = askFor(o, s)
	}
	return a
}

// askFor asks for leases that may be another's.
func askFor(o order, s *session.Session) (ids []string, _ *wire.Error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.Within)
	defer cancel()
	var leases []network.LeaseInfo
	var err error
	switch o.Do {
	case "list":
		leases, err = network.List(ctx, s, network.ListRequest{})
	case "lookup":
		leases = make([]network.LeaseInfo, 1)
		leases[0], err = network.Lookup(ctx, s, "", o.Hostname)
	case "inspect":
		leases = make([]network.LeaseInfo, 1)
		leases[0], err = network.Inspect(ctx, s, network.InspectRequest{Lease: o.Lease})
	case "count":
		_, err = network.Count(ctx, s)
	case "watch": // the list that comes first
		for c, failed := range network.Watch(ctx, s, network.WatchRequest{}) {
			if err = failed; err != nil || c.Kind == network.ChangeSynced {
				break
			}
			leases = append(leases, *c.Lease)
		}
	case "reload":
		_, err = network.Reload(ctx, s)
	case "release":
		err = s.Call(ctx, network.MethodRelease, network.LeaseRef{Lease: o.Lease}, nil)
	case "witness":
		err = s.Call(ctx, network.MethodWitness, network.WitnessRequest{Lease: o.Lease, Witness: witnessOf(o.Witness)}, nil)
	}
	for _, l := range leases {
		ids = append(ids, l.ID)
	}
	return ids, wire.AsError(err)
}

// witnessOf returns a pidfd of a process; nil for 0.
func witnessOf(pid int) *os.File {
	if file := started[pid]; file != nil || pid == 0 {
		return file
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "pidfd") // it ends with the holder
}

// started are the pidfds of the processes that a holder has started, by their numbers as it knows them.
var started = map[int]*os.File{}

// linger starts a process that lives until the test's lifeline ends.
func linger(flags uintptr, files ...*os.File) int {
	var fd int
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), role+"=linger")
	cmd.ExtraFiles = append([]*os.File{os.NewFile(3, "lifeline")}, files...)
	cmd.SysProcAttr = &syscall.SysProcAttr{PidFD: &fd, Cloneflags: flags}
	if cmd.Start() != nil {
		return 0
	}
	started[cmd.Process.Pid] = os.NewFile(uintptr(fd), "pidfd")
	return cmd.Process.Pid
}

// A child is a process that a test started.
type child struct {
	t       *testing.T
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	stdout  *bufio.Reader
	lifes   *os.File // closing it ends those that linger
	waited  bool
	lingers []*process.Handle
}

// run starts this test binary in a role and waits until it is ready.
func run(t *testing.T, as string, args ...string) *child {
	t.Helper()
	return runIn(t, nil, as, args...)
}

// runIn is run with attributes.
func runIn(t *testing.T, attr *syscall.SysProcAttr, as string, args ...string) *child {
	t.Helper()
	c := launch(t, attr, as, args...)
	if line, err := c.stdout.ReadString('\n'); !strings.HasPrefix(line, "ready") || strings.Contains(line, "error") {
		t.Fatalf("a %s says %q, %v", as, line, err)
	}
	return c
}

// launch is runIn for one who waits for the child himself.
func launch(t *testing.T, attr *syscall.SysProcAttr, as string, args ...string) *child {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.SysProcAttr = attr
	cmd.Env = append(os.Environ(), role+"="+as)
	lifeline, lifes, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer lifeline.Close()
	cmd.ExtraFiles = []*os.File{lifeline}
	cmd.Stderr = os.Stderr
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil || cmd.Start() != nil {
		t.Fatal("cannot start a child")
	}
	c := &child{t: t, cmd: cmd, stdin: stdin, stdout: bufio.NewReader(stdout), lifes: lifes}
	t.Cleanup(c.end)
	return c
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// pidfd returns a pidfd of the child, which the test closes.
func (c *child) pidfd() *os.File {
	c.t.Helper()
	return pidfd(c.t, c.pid())
}

// pidfd returns a pidfd of a process that lives, which the test closes.
func pidfd(t *testing.T, pid int) *os.File {
	t.Helper()
	h, err := process.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	file, err := h.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

// ask tells a holder to do something.
func (c *child) ask(o order) {
	c.t.Helper()
	if o.Within == 0 {
		o.Within = patience
	}
	text, _ := json.Marshal(o)
	if _, err := c.stdin.Write(append(text, '\n')); err != nil {
		c.t.Fatal(err)
	}
}

// order has a holder do something, and returns what came of it.
func (c *child) order(o order) answer {
	c.t.Helper()
	c.ask(o)
	line, err := c.stdout.ReadBytes('\n')
	var a answer
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err != nil {
		c.t.Fatalf("a holder answers %q, %v", line, err)
	}
	return a
}

// allocate has a holder allocate, which must succeed.
func (c *child) allocate(o order) answer {
	c.t.Helper()
	o.Do = "allocate"
	a := c.order(o)
	if a.Error != nil {
		c.t.Fatal(a.Error)
	}
	return a
}

// linger has a holder start a process that outlives it.
func (c *child) linger(how string) *process.Handle {
	c.t.Helper()
	pid := c.order(order{Do: how}).PID
	h, err := process.Open(pid)
	if err != nil {
		c.t.Fatal(err)
	}
	c.lingers = append(c.lingers, h)
	return h
}

// kill kills the child and returns when it is gone.
func (c *child) kill() {
	if !c.waited {
		c.waited = true
		c.cmd.Process.Kill()
		c.cmd.Wait()
		c.stdin.Close()
	}
}

// end kills the child and all that it started.
func (c *child) end() {
	c.kill()
	c.lifes.Close()
	for _, h := range c.lingers {
		h.Signal(syscall.SIGKILL)
		until(c.t, "a process that lingers ends", h.Gone)
		h.Close()
	}
	c.lingers = nil
}

// leavesNothing checks at the end of the test that no descriptor, goroutine or child is left.
func leavesNothing(t *testing.T) {
	t.Helper()
	descriptors, goroutines := countDescriptors(t), runtime.NumGoroutine()
	t.Cleanup(func() {
		until(t, "descriptors and goroutines go", func() bool {
			return countDescriptors(t) <= descriptors && runtime.NumGoroutine() <= goroutines
		})
		if _, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
			t.Errorf("a child is left: wait4 says %v", err)
		}
	})
}

func countDescriptors(t *testing.T) int { return countDescriptorsOf(t, os.Getpid()) }

func countDescriptorsOf(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// A journal keeps what is logged.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, string(line))
	return len(line), nil
}

func (j *journal) logger() *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }

// warnings returns the lines at level warn.
func (j *journal) warnings() []string { return j.with("level=WARN") }

// with returns the lines that have a text.
func (j *journal) with(text string) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var found []string
	for _, line := range j.lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// limitFiles bounds how long the files of a child may become, in bytes.
func limitFiles(t *testing.T, c *child, size uint64) {
	t.Helper()
	if err := unix.Prlimit(c.pid(), unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: size, Max: unix.RLIM_INFINITY}, nil); err != nil {
		t.Fatal(err)
	}
}

// fillRecord has a service write its record until there is no room left in it, for leases with as much to say as one without a hostname.
func fillRecord(t *testing.T, c *client.Session) {
	t.Helper()
	for {
		l, err := network.Allocate(within(t, patience), c, network.Request{})
		if err == nil {
			err = l.Release(within(t, patience))
		} else if errors.Is(err, wire.Unavailable) && strings.Contains(err.Error(), "cannot record the lease") {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// written returns what a service has written into a file of its record: what is behind that is zeros.
func written(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	return bytes.TrimRight(text, "\x00"), err
}

// folder returns a new folder, with a path that is short enough for a socket in it, which t.TempDir's may not be.
func folder(t testing.TB) string {
	t.Helper()
	path, err := os.MkdirTemp("", "network")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	return path
}
