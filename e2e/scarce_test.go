package e2e_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

// Users of the tests: those who attack, and one who behaves well.
const (
	hostileUID = 65534
	goodUID    = 65533
	plainUID   = 65532
)

// playServer serves the endpoint that its argument names, or else echoEndpoint, until it is asked to stop.
func playServer(args []string) error {
	endpoint := cmp.Or(strings.Join(args, ""), echoEndpoint)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	mux := services.NewMux()
	services.Handle(mux, "echo", func(_ context.Context, r text) (text, error) { return r, nil })
	services.Handle(mux, "measure", measure)
	return services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}}.Serve(ctx)
}

// playThrong has so many clients as its first argument says open a session each with the endpoint of its second, all at once, and prints what became of them. They stay
// until its input ends.
func playThrong(args []string) error {
	size, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	all := tally{Refused: map[wire.Code]int64{}, Says: map[wire.Code]string{}}
	var mu sync.Mutex
	var opening sync.WaitGroup
	var sessions []*client.Session
	for range size {
		opening.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience/3)
			defer cancel()
			s, err := client.Dial(ctx, args[1], client.Options{NoWait: true})
			mu.Lock()
			defer mu.Unlock()
			switch e, typed := errors.AsType[*wire.Error](err); {
			case err == nil:
				all.Opened++
				sessions = append(sessions, s)
			case typed:
				all.Refused[e.Code]++
				all.Says[e.Code] = e.Text
			default:
				all.Refused["untyped"]++
				all.Says["untyped"] = err.Error()
			}
		})
	}
	opening.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		return err
	}
	bufio.NewReader(os.Stdin).ReadString('\n')
	for _, s := range sessions {
		s.Close()
	}
	return nil
}

// as starts this test's program in a role as another user, who needs a copy of it and has logged in: it is in a session of its own.
func (w *world) as(uid uint32, role string, args ...string) *process {
	w.t.Helper()
	path := filepath.Join(w.dir, "program")
	if _, err := os.Lstat(path); err != nil {
		text, err := os.ReadFile(self())
		if err := errors.Join(err, os.WriteFile(path, text, 0o755), os.Chmod(w.dir, 0o755)); err != nil {
			w.t.Fatal(err)
		}
	}
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Env = "/", []string{roleVariable + "=" + role}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return w.start(cmd)
}

// serveEcho declares the echo service for everybody, with more lines of its file, and starts a broker that may have so many descriptors; 0: as this process.
func (w *world) serveEcho(files int, more string) {
	w.t.Helper()
	file := fmt.Sprintf("name = %q\nprogram = [\"/usr/bin/env\", %q, %q]\nstop_timeout = \"2s\"\n%s\n[allow]\nopen = [\"any\"]\n",
		echoEndpoint, roleVariable+"=server", self(), more)
	if err := os.WriteFile(filepath.Join(w.config(), "services.d", "echo.toml"), []byte(file), 0o644); err != nil {
		w.t.Fatal(err)
	}
	cmd := w.serve()
	if files > 0 {
		cmd = exec.Command("/bin/sh", append([]string{"-c", `ulimit -n "$0"; exec "$@"`, strconv.Itoa(files)}, cmd.Args...)...)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // as a daemon has
	w.broker = w.start(cmd)
	w.broker.stderr.await(w.t, "broker started")
}

// sleepers declares so many services that run from the beginning: the broker has descriptors for each.
func (w *world) sleepers(n int) {
	w.t.Helper()
	for n := range n {
		name := fmt.Sprintf("com.example.sleeper%d", n)
		file := fmt.Sprintf("name = %q\nprogram = [\"/bin/sleep\", \"1000\"]\nrun_at_load = true\nstart_timeout = \"1h\"\nstop_timeout = \"1s\"\n", name)
		if err := os.WriteFile(filepath.Join(w.config(), "services.d", name+".toml"), []byte(file), 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
}

// knows has a user come once: the broker keeps a socket of that user's own from then on.
func (w *world) knows(uid uint32) {
	w.t.Helper()
	eventually(w.t, "the user has a session", func() bool { // services that start may have the descriptors
		p := w.as(uid, "throng", "1", broker.Endpoint)
		got := decodeLine[tally](w.t, p)
		p.say(w.t, "enough")
		p.exit(w.t)
		return got.Opened == 1
	})
}

// filesOf counts a process's descriptors.
func filesOf(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// The guards are scarce, Within of the quotas, and room and the code of EMFILE in an instance's host.
func TestWantOfDescriptorsRefusesClientsAndIsOverWhenTheyAreGone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to be another user needs root")
	}
	const clients = 500
	for _, files := range []int{64, 256, 1024} {
		for _, whose := range []string{"broker", "instance"} {
			t.Run(fmt.Sprint(whose, files), func(t *testing.T) {
				w := newWorld(t, one)
				if whose == "broker" {
					w.serveEcho(files, "")
				} else {
					w.serveEcho(0, fmt.Sprintf("[limits]\nnofile = %d", files))
				}
				dial := func() *client.Session {
					t.Helper()
					s, err := client.Dial(within(t, patience), echoEndpoint, client.Options{Socket: w.socket})
					if err != nil {
						t.Fatal(err)
					}
					return s
				}
				s := dial()
				instance := s.Peer().PID
				s.Close()
				w.knows(hostileUID)
				held, served := filesOf(t, w.broker.pid()), filesOf(t, instance)

				for _, uid := range []uint32{hostileUID, 0} { // within the others' share, and root's
					p := w.as(uid, "throng", strconv.Itoa(clients), echoEndpoint)
					got := decodeLine[tally](t, p)
					refused := int64(0)
					for code, n := range got.Refused {
						refused += n
						if code != wire.OverQuota {
							t.Errorf("uid %d: %d clients are refused with %s: %s", uid, n, code, got.Says[code])
						}
					}
					if got.Opened == 0 || got.Opened+refused != clients || whose == "instance" && files < clients && refused == 0 {
						t.Errorf("uid %d: of %d clients %d have a session, and %d are refused: %v", uid, clients, got.Opened, refused, got.Says)
					}
					t.Logf("uid %d: %d have a session, %v", uid, got.Opened, got.Refused)
					if _, errs, code := w.ctl("status"); code != 0 && uid != 0 { // root may be in its own way
						t.Errorf("uid %d: meanwhile brokerctl exits %d: %s", uid, code, errs)
					}
					p.say(t, "enough")
					p.exit(t)
				}
				eventually(t, "the descriptors are free", func() bool {
					return filesOf(t, w.broker.pid()) <= held && filesOf(t, instance) <= served
				})
				s = dial()
				defer s.Close()
				if reply, err := client.Call[text](within(t, patience), s, "echo", text{"x"}); err != nil || reply.Text != "x" || s.Peer().PID != instance {
					t.Errorf("afterwards process %d answers %v, %v, want %d", s.Peer().PID, reply, err, instance)
				}
			})
		}
	}
}

// Sessions with the broker itself are its own descriptors, as are those of the instances that it keeps. The guards are charge, which leaves the last descriptors to root and the
// broker's user, and that accept goes on where it fails. Root may take the last one: who comes then is told when there is one again, or waits for that.
func TestSessionsWithTheBrokerItselfLeaveItDescriptorsForOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to be another user needs root")
	}
	const files, instances, clients = 64, 11, 200
	w := newWorld(t, one)
	w.sleepers(instances)
	w.serveEcho(files, "")
	w.ctl("status")
	before := filesOf(t, w.broker.pid())
	for _, uid := range []uint32{hostileUID, 0} {
		p := w.as(uid, "throng", strconv.Itoa(clients), broker.Endpoint)
		got := decodeLine[tally](t, p)
		refused := got.Refused[wire.OverQuota]
		if uid == 0 {
			refused += got.Refused[wire.DeadlineExceeded]
		}
		if got.Opened == 0 || refused == 0 || got.Opened+refused != clients {
			t.Errorf("uid %d: of %d clients %d have a session, and %v are refused: %v", uid, clients, got.Opened, got.Refused, got.Says)
		}
		t.Logf("uid %d: %d have a session, %v; the broker has %d descriptors", uid, got.Opened, got.Refused, filesOf(t, w.broker.pid()))
		if uid != 0 { // root may be in its own way
			if _, errs, code := w.ctl("status"); code != 0 {
				t.Errorf("meanwhile brokerctl exits %d: %s", code, errs)
			}
		}
		p.say(t, "enough")
		p.exit(t)
		eventually(t, "the descriptors are free", func() bool { return filesOf(t, w.broker.pid()) <= before })
	}
	if _, errs, code := w.ctl("status"); code != 0 {
		t.Errorf("afterwards brokerctl exits %d: %s", code, errs)
	}
}

// The guards are Within of the quotas, charge, which leaves the last descriptors to root and the broker's user, and startFiles in begin, which leaves them there when services start.
func TestAnOperatorGetsInWhenInstancesAndStrangersHaveTheDescriptors(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to be another user needs root")
	}
	const files, services, asked = 64, 8, 20
	w := newWorld(t, one)
	w.sleepers(services)
	w.serveEcho(files, "")
	var all []*process
	for range 4 {
		all = append(all, w.as(hostileUID, "hostile", strconv.Itoa(silent)))
	}
	eventually(t, "strangers are refused", func() bool {
		return ctlJSON[struct {
			OverQuota int `json:"over_quota"`
		}](w, "status", "status").OverQuota > 0
	})
	t.Logf("the broker has %d descriptors of %d", filesOf(t, w.broker.pid()), files)
	for range asked {
		if _, errs, code := w.ctl("status"); code != 0 {
			t.Errorf("brokerctl exits %d: %s", code, errs)
		}
	}
	for _, p := range all {
		p.stdin.Close()
		p.exit(t)
	}
}

// decodeLine waits for a line of a process that is JSON.
func decodeLine[T any](t *testing.T, p *process) (value T) {
	t.Helper()
	line := p.stdout.next(t)
	if err := json.Unmarshal([]byte(line), &value); err != nil {
		t.Fatalf("%q: %v\n%v", line, err, p.stderr)
	}
	return value
}
