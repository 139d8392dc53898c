package broker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// registerAndLose registers by hand, loses its control connection when there is a file, says so by another, and lives on.
func registerAndLose() {
	path := os.Getenv(argumentVariable)
	fd, err := strconv.Atoi(os.Getenv(services.ControlVariable))
	fail(err)
	f := os.NewFile(uintptr(fd), "control")
	conn, err := socket.FromFile(f)
	fail(err)
	f.Close()
	fail(say(conn, wire.KindRegister, wire.Register{Service: echoEndpoint, Instance: 1, Endpoints: []string{echoEndpoint}}))
	fail(answer(conn))
	control := session.NewControl(conn, session.Config{Endpoint: "control", Opener: true, Handler: services.NewMux()})
	awaitFile(path + ".lose")
	lose(control)
	fail(os.WriteFile(path+".lost", nil, 0o600))
	select {}
}

// serveAlone serves the echo endpoint, and writes down if there is another that does.
func serveAlone() {
	path := os.Getenv(argumentVariable)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	fail(err)
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		fmt.Fprintln(f, os.Getpid(), "is not alone:", err)
	}
	fail(services.Server{Endpoints: map[string]*services.Mux{echoEndpoint: echoMux()}}.Serve(context.Background()))
}

// nobodyElse checks that this process cannot register what the echo service serves, whatever it claims to be.
func nobodyElse(t *testing.T, at, when string, owner int) {
	t.Helper()
	for _, r := range []wire.Register{
		{Service: echoEndpoint, Endpoints: []string{echoEndpoint}},
		{Service: echoEndpoint, Endpoints: []string{echoEndpoint}, Instance: 1},
		{Service: echoEndpoint, Endpoints: []string{echoEndpoint}, Instance: 2},
		{Service: echoEndpoint, Endpoints: []string{echoEndpoint, "com.example.more"}, Instance: 1},
		{Service: "com.example.more", Endpoints: []string{echoEndpoint}},
	} {
		control, err := register(at, r)
		if err == nil {
			lose(control)
			t.Errorf("%s: %+v is registered", when, r)
			continue
		}
		e := wire.AsError(err)
		if !errors.Is(err, wire.Conflict) || r.Service == echoEndpoint && (e.Holder == nil || e.Holder.PID != owner) {
			t.Errorf("%s: to register %+v: %v (%+v), want %s and process %d", when, r, err, e.Holder, wire.Conflict, owner)
		}
	}
}

func TestNobodyElseRegistersWhatAServiceServesWhileItsInstanceIsUp(t *testing.T) {
	leavesNothing(t)
	service, err := echoService("registerandlose")
	must(t, err)
	path := filepath.Join(t.TempDir(), "control")
	service.Program[2] = argumentVariable + "=" + path
	service.StopTimeout = time.Second
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{service}})
	d := commanded(t, b.Socket, broker.MethodStart)
	nobodyElse(t, b.Socket, "while it is registered", d.PID)
	must(t, os.WriteFile(path+".lose", nil, 0o600))
	until(t, "the control connection is lost", func() bool { return details(t, b.Socket).State == broker.ServiceStarting })
	nobodyElse(t, b.Socket, "while its control connection is lost", d.PID)
	commanded(t, b.Socket, broker.MethodStop)
	control, err := register(b.Socket, wire.Register{Service: echoEndpoint, Endpoints: []string{echoEndpoint}})
	if must(t, err); err == nil {
		lose(control)
	}
}

// taken starts a broker of a service in a process of its own, opens the service, and does what is asked for before the broker is killed. It returns the session
// and how the service was.
func taken(t *testing.T, s servicefile.Service, cgroups bool, at string, before func(*client.Session)) (*client.Session, broker.ServiceDetails) {
	t.Helper()
	earlier := playBroker(t, s, cgroups, at)
	opened := open(t, at)
	before(opened)
	d := details(t, at)
	earlier.kill()
	return opened, d
}

func TestAfterABrokersRestartAnInstanceIsKnownByItsPidfdAndNobodyElseIs(t *testing.T) {
	at := brokertest.Socket(t)
	service, _ := actor(t)
	s, was := taken(t, service, true, at, func(s *client.Session) {
		must(t, syscall.Kill(s.Peer().PID, syscall.SIGSTOP)) // it registers when the test wants it to
	})
	b := brokertest.StartWith(t, broker.Config{Socket: at, Services: []servicefile.Service{service}})
	nobodyElse(t, at, "before it has registered again", was.PID)
	if d := details(t, at); d.State != broker.ServiceStarting || d.PID != was.PID || d.Instance != was.Instance || d.Keeper != was.Keeper {
		t.Errorf("before it has registered again, it is %+v and was %+v", d, was)
	}
	must(t, syscall.Kill(was.PID, syscall.SIGCONT))
	if i := running(t, b, echoEndpoint); i.PID != was.PID || i.Instance != was.Instance {
		t.Errorf("it is %+v and was %+v", i, was)
	}
	nobodyElse(t, at, "after it has registered again", was.PID)
	if reply, err := client.Call[echoReply](within(t, patience), s, "echo", echoRequest{"hi"}); err != nil || reply.Text != "hi" {
		t.Errorf("a call on the session from before: %+v, %v", reply, err)
	}
}

func TestAServiceMayHaveAnotherNameThanTheEndpointsThatItsProgramRegisters(t *testing.T) {
	const name, other = "com.example.named", "com.example.other"
	service, _ := actor(t)
	service.Name = name
	at := brokertest.Socket(t)
	earlier := playBroker(t, service, true, at)
	opened := open(t, at)
	earlier.kill()
	b := brokertest.StartWith(t, broker.Config{Socket: at, Services: []servicefile.Service{service}})
	if i := running(t, b, name); i.PID != opened.Peer().PID || i.Instance != 1 {
		t.Errorf("after a restart of the broker it is %+v, and was process %d", i, opened.Peer().PID)
	}
	service.Endpoints = []string{other}
	wrong := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{service}})
	_, err := client.Dial(within(t, patience), other, client.Options{Socket: wrong.Socket})
	if says := "for the service " + name + ", and it registers " + echoEndpoint + ": name that in endpoints"; !errors.Is(err, wire.StartFailed) || !strings.Contains(err.Error(), says) {
		t.Errorf("a file that does not name the endpoint: %v, want %q", err, says)
	}
}

func TestABrokersRestartChangesNothingOfWhatIsKnownOfAService(t *testing.T) {
	at := brokertest.Socket(t)
	service, _ := actor(t)
	_, was := taken(t, service, true, at, func(s *client.Session) {
		s.Call(within(t, patience), "exit", 3, nil) // so that there is a last exit, and a failure
		open(t, at)
	})
	if was.Starts != 2 || was.Instance != 2 || was.Failures != 1 || was.Last == nil || was.Last.Status != "exit status 3" || was.Cause == nil || was.Cause.Client == nil {
		t.Fatalf("before, it is %+v, ended %+v, and was started for %+v", was, was.Last, was.Cause)
	}
	b := brokertest.StartWith(t, broker.Config{Socket: at, Services: []servicefile.Service{service}})
	running(t, b, echoEndpoint)
	is := details(t, at)
	is.Sessions, was.Sessions, was.Waiting = 0, 0, 0 // what goes on is known in its own time
	if d := time.Duration(is.StartedAt - was.StartedAt).Abs(); d < time.Second {
		is.StartedAt = was.StartedAt // the kernel tells it since the boot, to the tick
	}
	if !reflect.DeepEqual(is, was) {
		t.Errorf("it is  %+v\nand was %+v", is, was)
	}
}

// tellsExits reports whether the kernel tells how a process has ended to who is not its parent.
func tellsExits(t *testing.T) bool {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "read line; exit 7")
	in, err := cmd.StdinPipe()
	must(t, err, cmd.Start())
	h, err := process.Open(cmd.Process.Pid)
	must(t, err)
	defer h.Close()
	in.Close()
	cmd.Wait()
	_, told := h.ExitStatus()
	return told
}

func TestHowAnInstanceOfAnEarlierBrokersHasEndedIsKnownWhereTheKernelTells(t *testing.T) {
	told := tellsExits(t)
	for _, test := range []struct {
		name           string
		end            func(s *client.Session)
		status, signal string
		failures       int
	}{
		{"exit status 7", func(s *client.Session) { s.Call(s.Context(), "exit", 7, nil) }, "exit status 7", "", 1},
		{"exit status 0", func(s *client.Session) { s.Call(s.Context(), "exit", 0, nil) }, "exit status 0", "", 0},
		{"a signal", func(s *client.Session) { syscall.Kill(s.Peer().PID, syscall.SIGKILL) }, "signal: killed", "killed", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			at := brokertest.Socket(t)
			service, _ := actor(t)
			s, was := taken(t, service, true, at, func(*client.Session) {})
			b := brokertest.StartWith(t, broker.Config{Socket: at, Services: []servicefile.Service{service}})
			running(t, b, echoEndpoint)
			test.end(s)
			until(t, "the end is known", func() bool { return details(t, at).State == broker.ServiceStopped })
			want := broker.Exit{Instance: was.Instance, Status: test.status, Signal: test.signal}
			if !told {
				want.Status, want.Signal, test.failures = "unknown", "", 0
			}
			d := details(t, at)
			if d.Last == nil || d.Failures != test.failures {
				t.Fatalf("it is %+v", d)
			}
			if want.At = d.Last.At; !reflect.DeepEqual(*d.Last, want) {
				t.Errorf("it ended %+v, want %+v", *d.Last, want)
			}
			open(t, at)
			if i := running(t, b, echoEndpoint); i.Instance != was.Instance+1 {
				t.Errorf("the next is instance %d, want %d", i.Instance, was.Instance+1)
			}
		})
	}
}

func TestAfterAStopNothingIsLeftOfAnInstanceOfAnEarlierBrokers(t *testing.T) {
	eachWay(t, func(t *testing.T, cgroups bool) {
		at := brokertest.Socket(t)
		service, mark := actor(t)
		taken(t, service, cgroups, at, func(s *client.Session) {
			do(t, s, "daemonise", struct{ Path string }{filepath.Join(t.TempDir(), "daemon")})
		})
		until(t, "there are the program, the daemon and its child", func() bool { return len(marked(mark)) == 3 })
		brokertest.StartWith(t, broker.Config{Socket: at, Services: []servicefile.Service{service}})
		d := commanded(t, at, broker.MethodStop)
		if left := marked(mark); len(left) > 0 || d.State != broker.ServiceStopped || d.Failures != 0 {
			t.Errorf("left are %v, and it is %+v", left, d)
		}
	})
}

func TestTheKeepersDeathIsTheEndOfItsProgramAndTheNextOpenStartsAnother(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		t.Run(fmt.Sprintf("adopted=%t", adopted), func(t *testing.T) {
			eachWay(t, func(t *testing.T, cgroups bool) {
				at := brokertest.Socket(t)
				service, mark := actor(t)
				first := playBroker(t, service, cgroups, at)
				s := open(t, at)
				do(t, s, "daemonise", struct{ Path string }{filepath.Join(t.TempDir(), "daemon")})
				was := details(t, at)
				if adopted {
					first.kill()
					brokertest.StartWith(t, broker.Config{Socket: at, Services: []servicefile.Service{service}})
				}
				must(t, syscall.Kill(was.Keeper, syscall.SIGKILL))
				until(t, "the end is known", func() bool { return details(t, at).State == broker.ServiceStopped })
				// Who reaps an orphan, and when, is not this test's to say, and before that no kernel tells.
				if d := details(t, at); d.Last == nil || d.Last.Instance != was.Instance || d.Last.Signal != "killed" && d.Last.Status != "unknown" {
					t.Errorf("it is %+v, and ended %+v", d, d.Last)
				}
				for _, pid := range marked(mark) {
					if pid == was.PID || cgroups {
						t.Errorf("process %d is left", pid)
					}
				}
				open(t, at)
				if d := details(t, at); d.State != broker.ServiceRunning || d.Instance != was.Instance+1 {
					t.Errorf("the next one is %+v", d)
				}
			})
		})
	}
}

func TestTheDeathOfABrokerAtAnyMomentOfAStartLeavesNeitherTwoInstancesNorOneThatIsNobodys(t *testing.T) {
	const runs = 12
	outlived := 0
	for n := range runs {
		at := brokertest.Socket(t)
		service, mark := actor(t)
		path := filepath.Join(t.TempDir(), "alone")
		program, err := os.Executable()
		must(t, err)
		service.Program = []string{"/usr/bin/env", roleVariable + "=alone", argumentVariable + "=" + path, noSleep, program}
		earlier := playBroker(t, service, n%4 < 2 || os.Geteuid() != 0, at) // to hide cgroups needs root
		opened := opening(t, at)
		until(t, "a start begins", func() bool { _, err := os.Stat(broker.LockPath(at, echoEndpoint)); return err == nil })
		if n%2 == 1 {
			until(t, "the program is executed", func() bool { return len(marked(mark)) > 0 })
		}
		after := rand.N(5 * time.Millisecond)
		for begun := time.Now(); time.Since(begun) < after; {
		}
		earlier.kill()
		outlived += min(len(marked(mark)), 1)
		b := brokertest.StartWith(t, broker.Config{Socket: at, Services: []servicefile.Service{service}})
		if err := arrives(t, "the open", opened); err != nil {
			t.Errorf("killed %v after the start: %v", after, err)
		}
		if all := marked(mark); len(all) != 1 {
			t.Errorf("killed %v after the start: the instances are %v, want one", after, all)
		}
		d := details(t, at)
		b.Stop()
		if left := marked(mark); len(left) > 0 {
			t.Errorf("killed %v after the start: %v is left after the next broker's stop: the service was %+v", after, left, d)
		}
		if text, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(text)) != "" {
			t.Errorf("killed %v after the start: %s %v", after, text, err)
		}
	}
	t.Logf("%d of %d instances outlived their broker's death", outlived, runs)
}
