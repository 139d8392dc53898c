package broker_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

// An ending is how a program is to end: by a signal, or with a status.
type ending struct {
	Status int
	Signal syscall.Signal
}

func (e ending) end() {
	if e.Signal != 0 {
		fail(syscall.Kill(os.Getpid(), e.Signal))
		select {}
	}
	os.Exit(e.Status)
}

// serveUntilToldHowToEnd serves an endpoint until a client says how the process ends.
func serveUntilToldHowToEnd() {
	mux := echoMux()
	services.Handle(mux, "end", func(_ context.Context, e ending) (any, error) {
		e.end()
		return nil, nil
	})
	fail(services.Server{Endpoints: map[string]*services.Mux{os.Getenv(argumentVariable): mux}}.Serve(context.Background()))
}

// played declares a service of a name that this test's binary serves in a role. It may be started again at once.
func played(t *testing.T, role, name string) servicefile.Service {
	t.Helper()
	program, err := os.Executable()
	must(t, err)
	return servicefile.Service{
		Name: name, Endpoints: []string{name}, ThrottleInterval: time.Millisecond,
		Program: []string{"/usr/bin/env", roleVariable + "=" + role, argumentVariable + "=" + name, noSleep, program},
	}
}

// dial opens a session.
func dial(t *testing.T, b *brokertest.Broker, endpoint string) (*client.Session, error) {
	t.Helper()
	return client.Dial(within(t, patience), endpoint, client.Options{Socket: b.Socket})
}

// endIt has an instance end in a way, through a session that is opened for that.
func endIt(t *testing.T, b *brokertest.Broker, endpoint string, e ending) {
	t.Helper()
	s, err := dial(t, b, endpoint)
	must(t, err)
	defer s.Close()
	until(t, "the broker knows that the session is open", func() bool { // else nobody tells it of that
		return slices.ContainsFunc(sessions(t, b, broker.SessionsRequest{Endpoint: endpoint}), func(l broker.Session) bool {
			return l.ID == s.ID() && l.State == broker.SessionOpen
		})
	})
	if _, err := client.Call[any](within(t, patience), s, "end", e); !errors.Is(err, wire.Interrupted) {
		t.Fatalf("%s does not end: %v", endpoint, err)
	}
}

// inspected returns what the broker says of a service.
func inspected(t *testing.T, b *brokertest.Broker, name string) broker.ServiceDetails {
	t.Helper()
	return ask[broker.ServiceDetails](t, b, broker.MethodService, broker.ServiceRequest{Name: name})
}

// comesTo waits until a service has had a number of starts and is in a state.
func comesTo(t *testing.T, b *brokertest.Broker, name, state string, starts int64) (d broker.ServiceDetails) {
	t.Helper()
	until(t, fmt.Sprintf("%s is %s after %d starts", name, state, starts), func() bool {
		d = inspected(t, b, name)
		return d.State == state && d.Starts == starts
	})
	return d
}

// causeOf is the kind of a service's cause; empty: it has none.
func causeOf(d broker.ServiceDetails) string {
	if d.Cause == nil {
		return ""
	}
	return d.Cause.Kind
}

func TestAnInstanceIsStartedAgainAfterTheEndsThatItsKeepAliveNamesAndNoOthers(t *testing.T) {
	endings := []struct {
		ending
		status string
		again  map[servicefile.KeepAlive]bool
	}{
		{ending{}, "exit status 0", map[servicefile.KeepAlive]bool{servicefile.Always: true}},
		{ending{Status: 1}, "exit status 1", map[servicefile.KeepAlive]bool{servicefile.Always: true, servicefile.OnFailure: true}},
		{ending{Signal: syscall.SIGKILL}, "signal: killed", map[servicefile.KeepAlive]bool{
			servicefile.Always: true, servicefile.OnFailure: true, servicefile.OnCrash: true,
		}},
	}
	keeps := []servicefile.KeepAlive{servicefile.Never, servicefile.Always, servicefile.OnFailure, servicefile.OnCrash}
	name := func(keep servicefile.KeepAlive, n int) string { return fmt.Sprintf("com.example.%v-%d", keep, n) }
	var list []servicefile.Service
	for _, keep := range keeps {
		for n := range endings {
			s := played(t, "ends", name(keep, n))
			s.KeepAlive = keep
			list = append(list, s)
		}
	}
	b := brokertest.StartWith(t, broker.Config{Services: list})
	for _, keep := range keeps {
		for n, end := range endings {
			t.Run(fmt.Sprintf("%v and %s", keep, end.status), func(t *testing.T) {
				name := name(keep, n)
				first := broker.CauseOpen
				if keep == servicefile.Always { // as launchd has it, that is also to be run at load
					first = broker.CauseLoad
				}
				endIt(t, b, name, end.ending)
				state, starts, why := broker.ServiceStopped, int64(1), first
				if end.again[keep] {
					state, starts, why = broker.ServiceRunning, 2, broker.CauseKeepAlive
				}
				d := comesTo(t, b, name, state, starts)
				if causeOf(d) != why || d.Cause.At == 0 || d.Last == nil || d.Last.Status != end.status || d.Last.Instance != 1 {
					t.Errorf("started by %+v, want %s; the last exit is %+v, want %s", d.Cause, why, d.Last, end.status)
				}
			})
		}
	}
}

func TestAStartNamesItsCause(t *testing.T) {
	const atLoad, asked = "com.example.loaded", "com.example.asked"
	loaded := played(t, "ends", atLoad)
	loaded.RunAtLoad = true
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{loaded, played(t, "ends", asked)}})
	if d := comesTo(t, b, atLoad, broker.ServiceRunning, 1); causeOf(d) != broker.CauseLoad || d.Cause.Client != nil {
		t.Errorf("%+v, want %s", d.Cause, broker.CauseLoad)
	}
	endIt(t, b, atLoad, ending{})
	comesTo(t, b, atLoad, broker.ServiceStopped, 1)
	s, err := dial(t, b, atLoad)
	must(t, err)
	defer s.Close()
	d := inspected(t, b, atLoad)
	if causeOf(d) != broker.CauseOpen || d.Cause.Endpoint != atLoad || d.Cause.Client == nil || d.Cause.Client.PID != os.Getpid() {
		t.Errorf("%+v, want an open of process %d", d.Cause, os.Getpid())
	}
	if d := inspected(t, b, asked); d.Cause != nil || d.State != broker.ServiceStopped {
		t.Errorf("nobody asked for it, and it is %s, for %+v", d.State, d.Cause)
	}
	d = ask[broker.ServiceDetails](t, b, broker.MethodStart, broker.ServiceRequest{Name: asked})
	if causeOf(d) != broker.CauseCommand || d.Cause.Client == nil || d.Cause.Client.PID != os.Getpid() || d.State != broker.ServiceRunning {
		t.Errorf("%s for %+v, want a command of process %d", d.State, d.Cause, os.Getpid())
	}
}

func TestAnExitOfZeroIsNoFailureAndTheNextOpenStartsAtOnce(t *testing.T) {
	s := played(t, "ends", startedEndpoint)
	s.ThrottleInterval = time.Hour
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{s}})
	for n := range int64(7) { // more than the quick deaths that suspend
		endIt(t, b, startedEndpoint, ending{})
		if d := comesTo(t, b, startedEndpoint, broker.ServiceStopped, n+1); d.Failures != 0 {
			t.Errorf("%d failures", d.Failures)
		}
	}
	endIt(t, b, startedEndpoint, ending{Status: 1})
	comesTo(t, b, startedEndpoint, broker.ServiceStopped, 8)
	_, err := dial(t, b, startedEndpoint)
	e, _ := errors.AsType[*wire.Error](err)
	if !errors.Is(err, wire.StartFailed) || e.Retry <= 0 || e.Retry > time.Hour || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("an open after a failure: %v, want %s, after how long to ask again, and how the instance has ended", err, wire.StartFailed)
	}
}

func TestEveryAttemptCountsForThePauseAlsoThatOfAProgramThatCannotBeExecuted(t *testing.T) {
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{
		{Name: startedEndpoint, Endpoints: []string{startedEndpoint}, Program: []string{"/does/not/exist"}, ThrottleInterval: time.Hour},
	}})
	for n := range 3 {
		_, err := dial(t, b, startedEndpoint)
		if e, _ := errors.AsType[*wire.Error](err); !errors.Is(err, wire.StartFailed) || !strings.Contains(e.Text, "/does/not/exist") || (e.Retry > 0) != (n > 0) {
			t.Errorf("open %d: %v, want %s and why", n, err, wire.StartFailed)
		}
		if d := inspected(t, b, startedEndpoint); d.Starts != 1 || d.Failures != 1 || d.Last == nil || d.Last.Status != "not started" {
			t.Errorf("after open %d: %d starts, %d failures, the last exit %+v", n, d.Starts, d.Failures, d.Last)
		}
	}
}

// suspend has a service that fails at each start fail until it is suspended, and returns the refusal of the next open.
func suspend(t *testing.T, b *brokertest.Broker, name string) error {
	t.Helper()
	for n := 1; n <= 5; n++ {
		if _, err := dial(t, b, name); !errors.Is(err, wire.StartFailed) {
			t.Fatalf("open %d: %v, want %s", n, err, wire.StartFailed)
		}
		until(t, "the failure counts", func() bool { // the client may know first
			d := inspected(t, b, name)
			return d.Failures == n || d.State == broker.ServiceSuspended
		})
	}
	_, err := dial(t, b, name)
	return err
}

func TestFiveQuickDeathsSuspendAServiceAcrossBrokersUntilItIsReset(t *testing.T) {
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{shell(startedEndpoint, "echo no good >&2; exit 3", "")}})
	check := func(when string, err error) {
		t.Helper()
		d := inspected(t, b, startedEndpoint)
		due := time.Unix(0, int64(d.DueAt)).Format(time.RFC3339)
		if d.State != broker.ServiceSuspended || d.Starts != 5 || d.Last == nil || d.Last.Status != "exit status 3" || d.Last.Instance != 5 {
			t.Errorf("%s it is %s after %d starts, and the last exit is %+v", when, d.State, d.Starts, d.Last)
		}
		e, _ := errors.AsType[*wire.Error](err)
		if !errors.Is(err, wire.Suspended) || e.Retry <= 0 || e.Retry > 5*time.Minute {
			t.Fatalf("%s: %v, want %s and after how long to ask again", when, err, wire.Suspended)
		}
		for _, says := range []string{due, "brokerctl service reset " + startedEndpoint, "exit status 3", "no good"} {
			if !strings.Contains(e.Text, says) {
				t.Errorf("%s: %v does not say %q", when, err, says)
			}
		}
	}
	check("an open", suspend(t, b, startedEndpoint))
	b.Restart()
	_, err := dial(t, b, startedEndpoint)
	check("an open of the next broker", err)
	operator := b.Dial(broker.Endpoint, client.Options{})
	_, err = client.Call[broker.ServiceDetails](within(t, patience), operator, broker.MethodStart, broker.ServiceRequest{Name: startedEndpoint})
	check("a start by command", err)
	if d := ask[broker.ServiceDetails](t, b, broker.MethodReset, broker.ServiceRequest{Name: startedEndpoint}); d.State != broker.ServiceStopped || d.Failures != 0 || d.Starts != 5 {
		t.Errorf("after the reset it is %s with %d failures and %d starts", d.State, d.Failures, d.Starts)
	}
	if _, err := dial(t, b, startedEndpoint); !errors.Is(err, wire.StartFailed) {
		t.Errorf("an open after the reset: %v, want %s", err, wire.StartFailed)
	}
	if d := comesTo(t, b, startedEndpoint, broker.ServiceStopped, 6); d.Failures != 1 {
		t.Errorf("after the reset and an open there are %d failures", d.Failures)
	}
}

func TestTheNextBrokerKnowsHowTheLastInstanceEndedAndWaitsForTheRestOfThePause(t *testing.T) {
	s := shell(startedEndpoint, "exit 3", "")
	s.KeepAlive, s.ThrottleInterval = servicefile.OnFailure, time.Hour
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{s}})
	if _, err := dial(t, b, startedEndpoint); !errors.Is(err, wire.StartFailed) {
		t.Fatal(err)
	}
	before := comesTo(t, b, startedEndpoint, broker.ServiceWaiting, 1)
	b.Restart()
	after := comesTo(t, b, startedEndpoint, broker.ServiceWaiting, 1)
	if after.Last == nil || after.Last.Status != "exit status 3" || after.Failures != 1 || after.DueAt.Time().Sub(before.DueAt.Time()).Abs() > time.Second {
		t.Errorf("the next broker says %+v, the last exit %+v, due at %v, want %v", after, after.Last, after.DueAt.Time(), before.DueAt.Time())
	}
}

func TestWhatIsKeptAliveAndFailsAlwaysIsSuspendedAndStartedAgainAfterAReset(t *testing.T) {
	s := shell(startedEndpoint, "exit 3", "")
	s.KeepAlive = servicefile.Always
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{s}})
	d := comesTo(t, b, startedEndpoint, broker.ServiceSuspended, 5)
	if d.DueAt == 0 || causeOf(d) != broker.CauseKeepAlive {
		t.Errorf("it is due at %v, for %+v", d.DueAt, d.Cause)
	}
	ask[broker.ServiceDetails](t, b, broker.MethodReset, broker.ServiceRequest{Name: startedEndpoint})
	comesTo(t, b, startedEndpoint, broker.ServiceSuspended, 10)
}

// used returns the time on the processors of this process and of its children that are gone.
func used(t *testing.T) (d time.Duration) {
	t.Helper()
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		must(t, unix.Getrusage(who, &u))
		d += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return d
}

func TestASuspendedServiceStartsNothingHoweverOftenItIsOpened(t *testing.T) {
	s := shell(startedEndpoint, "exit 3", "")
	s.KeepAlive = servicefile.Always
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{s}})
	comesTo(t, b, startedEndpoint, broker.ServiceSuspended, 5)
	const opens = 50
	before, begun := used(t), time.Now()
	for range time.Tick(time.Second / opens) {
		if _, err := dial(t, b, startedEndpoint); !errors.Is(err, wire.Suspended) {
			t.Fatalf("%v, want %s", err, wire.Suspended)
		}
		if time.Since(begun) > time.Second {
			break
		}
	}
	t.Logf("%v of a processor in %v, with the clients", used(t)-before, time.Since(begun))
	if d := inspected(t, b, startedEndpoint); d.Starts != 5 || d.State != broker.ServiceSuspended {
		t.Errorf("it is %s after %d starts", d.State, d.Starts)
	}
}

// poison is the title of an open that kills who is asked to accept it.
const poison = "poison"

// serveUntilPoisoned serves the echo endpoint.
func serveUntilPoisoned() {
	s := echoServer()
	s.Accept = func(_ context.Context, o services.Opening) error {
		if o.Title == poison {
			ending{Signal: syscall.SIGKILL}.end()
		}
		return nil
	}
	fail(s.Serve(context.Background()))
}

// openWithPoison opens the echo endpoint with poison whenever it is told to, and prints the code of the refusal.
func openWithPoison() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_, err := client.Dial(ctx, echoEndpoint, client.Options{Title: poison})
		cancel()
		fmt.Println(wire.CodeOf(err))
	}
}

func TestAClientWhoseOpenCrashesTheServiceThreeTimesIsRefusedAndOthersGetThrough(t *testing.T) {
	s := played(t, "poison", echoEndpoint)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{s}})
	poisoner := play(t, "poisoner", "", b.Socket)
	opens := func(want wire.Code, starts int64) {
		t.Helper()
		_, err := poisoner.in.Write([]byte("\n"))
		must(t, err)
		if code := poisoner.line(t); code != string(want) {
			t.Errorf("the poison is answered with %s, want %s", code, want)
		}
		if d := comesTo(t, b, echoEndpoint, broker.ServiceStopped, starts); d.Last == nil || d.Last.Signal == "" {
			t.Errorf("the last exit is %+v", d.Last)
		}
	}
	opens(wire.Refused, 3) // the client's library has asked again after each crash
	opens(wire.Refused, 3)
	other, err := dial(t, b, echoEndpoint)
	must(t, err)
	defer other.Close()
	if _, err := client.Call[echoReply](within(t, patience), other, "echo", echoRequest{"hi"}); err != nil {
		t.Error(err)
	}
}

func TestClientsThatWaitBesideAPoisonousOneGetThroughWhenItIsRefused(t *testing.T) {
	s := played(t, "poison", echoEndpoint)
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{s}})
	poisoner := play(t, "poisoner", "", b.Socket)
	_, err := poisoner.in.Write([]byte("\n"))
	must(t, err)
	until(t, "it has crashed", func() bool { return inspected(t, b, echoEndpoint).Last != nil })
	var others sync.WaitGroup
	for range 10 {
		others.Go(func() {
			for { // an open that has come before the poison may have a session, and lose it
				s, err := dial(t, b, echoEndpoint)
				if err != nil {
					t.Errorf("another client: %v", err)
					return
				}
				_, err = client.Call[echoReply](within(t, patience), s, "echo", echoRequest{"hi"})
				s.Close()
				if err == nil {
					return
				}
			}
		})
	}
	others.Wait()
	if code := poisoner.line(t); code != string(wire.Refused) {
		t.Errorf("the poison is answered with %s, want %s", code, wire.Refused)
	}
}

// The guard is that left does not wait for an open that was refused: without, each that meets a limit holds up all others, as long as a service may take to accept a session.
func TestAnOpenBeyondALimitHoldsUpNobodyWhileAClientIsSuspect(t *testing.T) {
	needsRoot(t)
	program := asStranger(t).Path
	s := played(t, "poison", echoEndpoint)
	s.Program[len(s.Program)-1], s.Allow.Open, s.ThrottleInterval = program, ruled(t, "any"), time.Minute
	_, b := serving(t, broker.Config{Services: []servicefile.Service{s}, Quotas: few(quota.Sessions, 0)})
	conn, err := connect(b.Socket)
	must(t, err, say(conn, wire.KindOpen, wire.Open{Endpoint: echoEndpoint, Title: poison}))
	defer conn.Close()
	comesTo(t, b, echoEndpoint, broker.ServiceStopped, 1)
	ask[broker.ServiceDetails](t, b, broker.MethodStart, broker.ServiceRequest{Name: echoEndpoint})
	const held = 10 * time.Second // at least, without the guard
	began := time.Now()
	takes(t, program, b.Socket, nobody, taking{Kind: quota.Sessions, N: 1}).line(t)
	b.Dial(echoEndpoint, client.Options{}).Close()
	if took := time.Since(began); took >= held {
		t.Errorf("the refusal and the next open take %v", took)
	}
}
