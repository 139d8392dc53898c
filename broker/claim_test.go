package broker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// serveAndLinger serves an endpoint until its input says something, and lives on.
func serveAndLinger() {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		os.Stdin.Read(make([]byte, 1))
		cancel()
	}()
	fail(services.Server{
		Endpoints: map[string]*services.Mux{os.Getenv(argumentVariable): echoMux()},
		Ready:     func() { fmt.Println("registered") },
	}.Serve(ctx))
	fmt.Println("left")
	select {}
}

// serveUntilToldToLeave serves an endpoint until a client has it leave, and then does nothing for ever.
func serveUntilToldToLeave() {
	ctx, cancel := context.WithCancel(context.Background())
	mux := echoMux()
	services.Handle(mux, "leave", func(context.Context, any) (any, error) { cancel(); return nil, nil })
	services.Server{Endpoints: map[string]*services.Mux{os.Getenv(argumentVariable): mux}, Drain: time.Millisecond}.Serve(ctx)
	select {}
}

// ruled returns a list of one rule.
func ruled(t *testing.T, text string) servicefile.Rules {
	t.Helper()
	r, err := servicefile.ParseRule(text)
	must(t, err)
	return servicefile.Rules{r}
}

func TestWhoIsNotTrustedRegistersWhatItsFileDeclaresAndNothingElse(t *testing.T) {
	needsRoot(t)
	const started, undeclared = "com.example.started", "com.example.undeclared"
	program := asStranger(t).Path
	l := &log{}
	b := brokertest.StartWith(t, broker.Config{Logger: l.logger(), Services: []servicefile.Service{
		{Name: echoEndpoint, Endpoints: []string{echoEndpoint}, Allow: servicefile.Allow{Register: ruled(t, "uid:65534")}},
		{Name: started, Endpoints: []string{started}, User: "nobody", ThrottleInterval: time.Millisecond,
			Program: []string{"/usr/bin/env", roleVariable + "=several", argumentVariable + "=" + started + " " + started + " " + undeclared, noSleep, program}},
	}})
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	stranger := asks(t, program, b.Socket, syscall.Credential{Uid: nobody, Gid: nobody})
	if g := stranger.ask(t, wish{Register: echoEndpoint}); g.Code != "" {
		t.Errorf("what the file declares: %+v", g)
	}
	if g := stranger.ask(t, wish{Register: echoEndpoint, Besides: undeclared}); g.Code != wire.NotPermitted || !strings.Contains(g.Text, undeclared) {
		t.Errorf("an endpoint besides: %+v, want %s", g, wire.NotPermitted)
	}
	if _, err := dial(t, b, started); !errors.Is(err, wire.StartFailed) || l.count("registration refused", undeclared) != 2 {
		t.Errorf("an instance of that user's with an endpoint besides: %v\n%s", err, l.text.String())
	}
	control, err := register(b.Socket, wire.Register{Service: echoEndpoint, Endpoints: []string{echoEndpoint, undeclared}})
	if must(t, err); err == nil {
		lose(control)
	}
}

func TestAnInstanceThatFollowsOneThatIsLeavingIsNotTakenOutWithThat(t *testing.T) {
	for _, program := range [][]string{nil, {"/bin/false"}} {
		t.Run(fmt.Sprint(program), func(t *testing.T) {
			leavesNothing(t)
			const clock = "com.example.clock"
			b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{
				{Name: echoEndpoint, Endpoints: []string{echoEndpoint}, Program: program}, {Name: clock, Endpoints: []string{clock}},
			}})
			first := play(t, "rolls", echoEndpoint, b.Socket)
			first.line(t)
			_, err := first.in.Write([]byte("\n"))
			must(t, err)
			first.line(t)
			second := play(t, "rolls", echoEndpoint, b.Socket)
			second.line(t)
			opens := func(when string) {
				t.Helper()
				s, err := dial(t, b, echoEndpoint)
				if err != nil {
					t.Fatalf("%s: %v", when, err)
				}
				defer s.Close()
				if d := inspected(t, b, echoEndpoint); s.Peer().PID != second.cmd.Process.Pid || d.PID != s.Peer().PID || d.State != broker.ServiceRunning {
					t.Errorf("%s: process %d serves, want %d, and it is %s", when, s.Peer().PID, second.cmd.Process.Pid, d.State)
				}
			}
			opens("while the first is there")
			third := play(t, "serve", clock, b.Socket)
			third.line(t)
			first.kill()
			third.kill()
			comesTo(t, b, clock, broker.ServiceStopped, 0) // so the end of the first is known, too
			opens("when the first is gone")
		})
	}
}

// keeperOf waits for a keeper that this process has started, and returns its number.
func keeperOf(t *testing.T) (pid int) {
	t.Helper()
	until(t, "there is a keeper", func() bool {
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			command, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
			status, _ := os.ReadFile("/proc/" + e.Name() + "/status")
			if strings.HasPrefix(string(command), "fairlead-keeper\x00") && strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", os.Getpid())) {
				pid, _ = strconv.Atoi(e.Name())
				return true
			}
		}
		return false
	})
	return pid
}

func TestNobodyElseRegistersWhileAnInstanceIsBeingStarted(t *testing.T) {
	leavesNothing(t)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{played(t, "ends", echoEndpoint)}})
	for n := range int64(3) {
		started := in(t, b.Socket, broker.MethodStart)
		pid := keeperOf(t)
		must(t, syscall.Kill(pid, syscall.SIGSTOP)) // nothing goes on meanwhile
		control, err := register(b.Socket, wire.Register{Service: echoEndpoint, Endpoints: []string{echoEndpoint}})
		if err == nil {
			lose(control)
		}
		if !errors.Is(err, wire.Conflict) {
			t.Errorf("a stranger registers: %v, want %s", err, wire.Conflict)
		}
		must(t, syscall.Kill(pid, syscall.SIGCONT), arrives(t, "the start", started))
		if d := commanded(t, b.Socket, broker.MethodStop); d.Failures != 0 || d.Starts != n+1 || d.Last == nil || d.Last.Instance != n+1 {
			t.Errorf("it is %+v", d)
		}
	}
}

// stopsAtLast stops the echo service of a broker that leaves what it has started.
func stopsAtLast(t *testing.T, b *brokertest.Broker) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s := b.Dial(broker.Endpoint, client.Options{})
		if _, err := client.Call[any](ctx, s, broker.MethodStop, broker.ServiceRequest{Name: echoEndpoint}); err != nil {
			t.Error(err)
		}
	})
}

func TestAnInstanceThatNoLongerServesIsEndedAndFollowed(t *testing.T) {
	s := played(t, "leaves", echoEndpoint)
	s.StartTimeout, s.StopTimeout, s.KeepAlive = 300*time.Millisecond, 400*time.Millisecond, servicefile.Always
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{s}})
	comesTo(t, b, echoEndpoint, broker.ServiceRunning, 1)
	do(t, open(t, b.Socket), "leave", nil)
	d := comesTo(t, b, echoEndpoint, broker.ServiceRunning, 2)
	if d.Last == nil || d.Last.Instance != 1 || d.Failures != 1 {
		t.Errorf("it is %+v, and ended %+v", d, d.Last)
	}
}

func TestWhatHadNotRegisteredWithAnEarlierBrokerHasItsTimeAndIsKilled(t *testing.T) {
	s := servicefile.Service{Name: echoEndpoint, Endpoints: []string{echoEndpoint}, Program: []string{"/bin/sleep", "1000"}, StartTimeout: 500 * time.Millisecond}
	b := brokertest.StartWith(t, broker.Config{LeaveInstances: true, Services: []servicefile.Service{s}})
	started := in(t, b.Socket, broker.MethodStart)
	until(t, "it runs", func() bool { return inspected(t, b, echoEndpoint).PID != 0 })
	b.Restart()
	<-started
	if d := comesTo(t, b, echoEndpoint, broker.ServiceStopped, 1); d.Failures != 1 || d.Last == nil || d.Last.Instance != 1 {
		t.Errorf("it is %+v, and ended %+v", d, d.Last)
	}
}

func TestAProgramBehindAnotherThatStaysIsStartedAnewByTheNextBroker(t *testing.T) {
	s := played(t, "ends", echoEndpoint)
	s.Program = append([]string{"/bin/sh", "-c", `"$0" "$@"; exit $?`}, s.Program...)
	s.StartTimeout = 700 * time.Millisecond
	b := brokertest.StartWith(t, broker.Config{LeaveInstances: true, Services: []servicefile.Service{s}})
	stopsAtLast(t, b)
	b.Dial(echoEndpoint, client.Options{}).Close()
	b.Restart()
	until(t, "it is served again", func() bool {
		next, err := dial(t, b, echoEndpoint)
		if err != nil && !errors.Is(err, wire.StartTimeout) && !errors.Is(err, wire.StartFailed) {
			t.Fatal(err)
		}
		if err != nil {
			return false
		}
		next.Close()
		return inspected(t, b, echoEndpoint).Instance == 2
	})
}

func TestAServiceIsNotStartedWhileAnotherHasItsEndpointAndThatIsNoFailure(t *testing.T) {
	const old, next, its, moves = "com.example.old", "com.example.next", "com.example.its", "com.example.moves"
	x := plant(t)
	x.put(t, old, several(t, old, its, moves))
	x.put(t, next, several(t, next, next))
	b := x.start(t, &log{})
	b.Dial(moves, client.Options{}).Close()
	x.put(t, old, several(t, old, its))
	x.put(t, next, several(t, next, next, moves))
	reload(t, b)
	for range 6 { // more than suspend
		_, err := dial(t, b, next)
		if !errors.Is(err, wire.Unavailable) || !strings.Contains(err.Error(), "service restart "+old) {
			t.Errorf("%v, want %s and what to do", err, wire.Unavailable)
		}
	}
	if d := comesTo(t, b, next, broker.ServiceStopped, 6); d.Failures != 0 {
		t.Errorf("there are %d failures", d.Failures)
	}
	ask[broker.ServiceDetails](t, b, broker.MethodRestart, broker.ServiceRequest{Name: old})
	for _, e := range []string{next, moves} {
		b.Dial(e, client.Options{}).Close()
	}
}

func TestAServiceThatIsDeclaredWhileItIsServedIsThatOfItsProcess(t *testing.T) {
	x := plant(t)
	b := x.start(t, &log{})
	p := play(t, "serve", echoEndpoint, b.Socket)
	p.line(t)
	x.put(t, "echo", several(t, echoEndpoint, echoEndpoint)+"run_at_load = true\n")
	reload(t, b)
	s := b.Dial(echoEndpoint, client.Options{})
	if d := inspected(t, b, echoEndpoint); s.Peer().PID != p.cmd.Process.Pid || d.PID != s.Peer().PID || d.State != broker.ServiceRunning {
		t.Errorf("process %d serves, want %d, and it is %+v", s.Peer().PID, p.cmd.Process.Pid, d)
	}
	p.kill()
	until(t, "the next one is started", func() bool {
		s, err := dial(t, b, echoEndpoint)
		if err != nil {
			return false
		}
		s.Close()
		return inspected(t, b, echoEndpoint).Instance == 1
	})
}

// The end of an instance is recorded with no lock held, and another process may register meanwhile.
func TestAnInstanceThatRegistersAtTheMomentAnotherEndsIsReached(t *testing.T) {
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{{Name: echoEndpoint, Endpoints: []string{echoEndpoint}}}})
	for n := range 30 {
		first := play(t, "serve", echoEndpoint, b.Socket)
		first.line(t)
		until(t, "the first is registered", func() bool { return inspected(t, b, echoEndpoint).PID == first.cmd.Process.Pid })
		must(t, first.cmd.Process.Kill())
		var control *session.Session
		until(t, "the second is registered", func() (is bool) {
			var err error
			control, err = register(b.Socket, wire.Register{Service: echoEndpoint, Endpoints: []string{echoEndpoint}})
			return err == nil
		})
		for range 20 { // meanwhile the end of the first is recorded
			if d := inspected(t, b, echoEndpoint); d.State != broker.ServiceRunning || d.PID != os.Getpid() {
				t.Fatalf("round %d: the second has registered, and it is %s, process %d", n, d.State, d.PID)
			}
		}
		lose(control)
	}
}
