package broker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// gated declares the echo service, whose program is executed when there is a file.
func gated(t *testing.T) (s servicefile.Service, gate string) {
	t.Helper()
	s, _ = actor(t)
	gate = filepath.Join(t.TempDir(), "gate")
	s.Program = append([]string{"/bin/sh", "-c", `until [ -e "$0" ]; do sleep 0.01; done; exec "$@"`, gate}, s.Program...)
	return s, gate
}

func TestAnUpgradeOfTheBrokerLosesNoOpenThatWaitsForAStart(t *testing.T) {
	s, gate := gated(t)
	b := brokertest.StartWith(t, broker.Config{LeaveInstances: true, Services: []servicefile.Service{s}})
	stopsAtLast(t, b)
	opened := make(chan error, 1)
	go func() {
		s, err := client.Dial(within(t, patience), echoEndpoint, client.Options{Socket: b.Socket})
		if err == nil {
			s.Close()
		}
		opened <- err
	}()
	until(t, "it is being started", func() bool { return details(t, b.Socket).PID != 0 })
	b.Restart()
	must(t, os.WriteFile(gate, nil, 0o600), arrives(t, "the open", opened))
	if d := details(t, b.Socket); d.Instance != 1 || d.Starts != 1 {
		t.Errorf("it is %+v", d)
	}
}

func TestWhatWasStoppedStaysSoWhenTheBrokerIsStartedAgain(t *testing.T) {
	s := played(t, "ends", echoEndpoint)
	s.KeepAlive, s.RunAtLoad = servicefile.Always, true
	b := brokertest.StartWith(t, broker.Config{LeaveInstances: true, Services: []servicefile.Service{s}})
	comesTo(t, b, echoEndpoint, broker.ServiceRunning, 1)
	commanded(t, b.Socket, broker.MethodStop)
	for range 2 {
		b.Restart()
		if d := details(t, b.Socket); d.State != broker.ServiceStopped || d.Starts != 1 || d.Stopped == nil {
			t.Errorf("the next broker has it %+v", d)
		}
	}
	open(t, b.Socket).Close()
	b.Restart()
	comesTo(t, b, echoEndpoint, broker.ServiceRunning, 2)
	commanded(t, b.Socket, broker.MethodStop)
}

func TestAStopIsStrongerThanARestartBeforeIt(t *testing.T) {
	leavesNothing(t)
	for _, givenUp := range []bool{true, false} {
		t.Run(fmt.Sprintf("given up: %t", givenUp), func(t *testing.T) {
			service, _ := actor(t)
			b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{service}})
			letGo, answered := held(t, open(t, b.Socket))
			operator := b.Dial(broker.Endpoint, client.Options{})
			ctx, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			restarted := make(chan error, 1)
			go func() {
				_, err := client.Call[broker.ServiceDetails](ctx, operator, broker.MethodRestart, broker.ServiceRequest{Name: echoEndpoint})
				restarted <- err
			}()
			until(t, "it stops", func() bool { return details(t, b.Socket).State == broker.ServiceStopping })
			if givenUp {
				giveUp()
				<-restarted
			}
			stopped := in(t, b.Socket, broker.MethodStop)
			until(t, "the stop has come", func() bool { return details(t, b.Socket).Stopped != nil })
			letGo()
			must(t, arrives(t, "the answer", answered), arrives(t, "the stop", stopped))
			if !givenUp {
				if err := arrives(t, "the restart", restarted); !errors.Is(err, wire.Terminating) {
					t.Errorf("the restart: %v, want %s", err, wire.Terminating)
				}
			}
			if d := details(t, b.Socket); d.State != broker.ServiceStopped || d.Starts != 1 {
				t.Errorf("it is %+v", d)
			}
		})
	}
}

func TestARestartLeavesAnInstanceAloneThatNothingCouldFollow(t *testing.T) {
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{{Name: echoEndpoint, Endpoints: []string{echoEndpoint}}}})
	p := play(t, "serve", echoEndpoint, b.Socket)
	p.line(t)
	if _, err := command(t, b.Socket, broker.MethodRestart); !errors.Is(err, wire.Unavailable) {
		t.Errorf("%v, want %s", err, wire.Unavailable)
	}
	if d := details(t, b.Socket); d.State != broker.ServiceRunning || d.PID != p.cmd.Process.Pid {
		t.Errorf("it is %+v", d)
	}
}

// registerInVain serves an endpoint, and exits with 0 as soon as it is registered.
func registerInVain() {
	services.Server{
		Endpoints: map[string]*services.Mux{os.Getenv(argumentVariable): echoMux()}, Ready: func() { os.Exit(0) },
		Accept: func(ctx context.Context, _ services.Opening) error { <-ctx.Done(); return ctx.Err() },
	}.Serve(context.Background())
}

func TestAServiceThatEndsAsSoonAsItHasRegisteredIsNotStartedWithoutAPause(t *testing.T) {
	s := played(t, "vain", echoEndpoint)
	s.ThrottleInterval = time.Hour
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{s}})
	begun := time.Now()
	_, err := client.Dial(within(t, 1500*time.Millisecond), echoEndpoint, client.Options{Socket: b.Socket}) // it asks again and again
	d := inspected(t, b, echoEndpoint)
	if most := int64(time.Since(begun)/time.Second) + 1; err == nil || d.Starts > most || d.Failures != 0 {
		t.Errorf("%v after %d starts in %v, want at most %d; %d failures", err, d.Starts, time.Since(begun), most, d.Failures)
	}
}

// tellOfMany registers an endpoint, tells of 1,500 sessions that nobody has opened, says so, and stays.
func tellOfMany() {
	name := os.Getenv(argumentVariable)
	control, err := register(os.Getenv(socket.Variable), wire.Register{Service: name, Endpoints: []string{name}})
	fail(err)
	fail(tell(control, name, 1500))
	fmt.Println("told")
	os.Stdin.Read(make([]byte, 1))
}

// tell tells of sessions that nobody has opened.
func tell(control *session.Session, endpoint string, sessions int) error {
	for sessions > 0 {
		n := min(sessions, wire.MaxBatch)
		sessions -= n
		batch := make([]wire.SessionInfo, n)
		for i := range batch {
			batch[i] = wire.SessionInfo{ID: session.NewID(), Endpoint: endpoint, OpenedAt: time.Now().UnixNano()}
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := control.Call(ctx, wire.MethodSessions, wire.Sessions{Sessions: batch}, nil)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

func TestAnInstanceThatInventsSessionsLeavesThoseOfOthersTheirPlace(t *testing.T) {
	needsRoot(t)
	const ours, theirs, bad = 10_000, 1000, "com.example.bad"
	l := &log{}
	b := brokertest.StartWith(t, broker.Config{Logger: l.logger(), Services: []servicefile.Service{
		{Name: echoEndpoint, Endpoints: []string{echoEndpoint}, Allow: servicefile.Allow{Register: ruled(t, "uid:65534")}},
	}})
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	opened := func() int { return ask[broker.Status](t, b, broker.MethodStatus, nil).Open - 1 } // without this one
	stranger := playWith(t, asStranger(t), "tells", echoEndpoint, b.Socket)
	stranger.line(t)
	if n := opened(); n != theirs {
		t.Errorf("%d sessions of a stranger are listed, want %d", n, theirs)
	}
	control, err := register(b.Socket, wire.Register{Service: bad, Endpoints: []string{bad}})
	must(t, err)
	defer lose(control)
	must(t, tell(control, bad, ours+wire.MaxBatch))
	if n := opened(); n != ours+theirs {
		t.Errorf("%d sessions are listed, want %d", n, ours+theirs)
	}
	if l.count("sessions not listed", "uid=65534") == 0 {
		t.Error("no line says that there are more")
	}
	last := sessions(t, b, broker.SessionsRequest{Endpoint: bad})[0]
	end := wire.SessionInfo{ID: last.ID, Endpoint: bad, ClosedAt: time.Now().UnixNano(), End: &wire.End{Code: wire.Invalid, Origin: wire.Peer}}
	must(t, control.Call(within(t, patience), wire.MethodSessions, wire.Sessions{Sessions: []wire.SessionInfo{end}}, nil), tell(control, bad, 2))
	if n := opened(); n != ours+theirs {
		t.Errorf("one has ended, and two more: %d are listed, want %d", n, ours+theirs)
	}
	stranger.kill()
	until(t, "those of the stranger are closed", func() bool { return opened() == ours })
}

// A stuck log blocks at a line that says something, until it is released.
type stuck struct {
	says    []byte
	release chan struct{}
	reached chan struct{}
}

func (s stuck) Write(b []byte) (int, error) {
	if bytes.Contains(b, s.says) {
		close(s.reached)
		<-s.release
	}
	return len(b), nil
}

func TestALogThatNobodyReadsHoldsUpNoQuestionAboutAService(t *testing.T) {
	out := stuck{[]byte("service suspended"), make(chan struct{}), make(chan struct{})}
	service := shell(echoEndpoint, "exit 3", "")
	service.KeepAlive = servicefile.Always
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{service}, Logger: slog.New(slog.NewTextHandler(out, nil))})
	defer close(out.release)
	<-out.reached
	inspected(t, b, echoEndpoint)
}

func TestACommandThatIsRefusedIsLogged(t *testing.T) {
	needsRoot(t)
	l := &log{}
	b := brokertest.StartWith(t, broker.Config{Logger: l.logger(), Services: []servicefile.Service{{Name: echoEndpoint, Endpoints: []string{echoEndpoint}}}})
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	stranger := asks(t, asStranger(t).Path, b.Socket, syscall.Credential{Uid: nobody, Gid: nobody})
	if g := stranger.ask(t, wish{Method: broker.MethodStop, Service: echoEndpoint}); g.Code != wire.NotPermitted {
		t.Errorf("%+v", g)
	}
	if n := l.count("denied", "uid=65534", "may not stop "+echoEndpoint); n != 1 {
		t.Errorf("%d lines:\n%s", n, l.text.String())
	}
}

func TestAVariableThatAFileMakesEmptyIsThereAndEmpty(t *testing.T) {
	t.Setenv("LANG", "")
	t.Setenv("TZ", "UTC")
	path := filepath.Join(t.TempDir(), "environment")
	s := shell(startedEndpoint, `env > "$1"; exit 1`, path)
	s.Environment = map[string]string{"EMPTY": "", "TZ": ""}
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{s}})
	if _, err := dial(t, b, startedEndpoint); !errors.Is(err, wire.StartFailed) {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	must(t, err)
	lines := strings.Split(string(text), "\n")
	if !slices.Contains(lines, "EMPTY=") || !slices.Contains(lines, "TZ=") || slices.Contains(lines, "LANG=") {
		t.Errorf("the environment is %q", lines)
	}
}

func TestAReloadWhileTheBrokerIsStoppedLeavesNothing(t *testing.T) {
	service, mark := actor(t)
	service.RunAtLoad = true
	var loading, loaded = make(chan struct{}), make(chan struct{})
	first := true
	b, err := broker.New(broker.Config{Socket: brokertest.Socket(t), Load: func() ([]servicefile.Service, []*servicefile.Problem) {
		if first {
			first = false
			return nil, nil
		}
		close(loading)
		<-loaded
		return []servicefile.Service{service}, nil
	}})
	must(t, err)
	t.Cleanup(func() { endsAll(t, mark) })
	ctx, stop := context.WithCancel(t.Context())
	served, reloaded := make(chan error, 1), make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	go func() { _, err := b.Reload(); reloaded <- err }()
	<-loading
	stop()
	<-b.Stopping()
	time.Sleep(50 * time.Millisecond) // a stop that would not wait would be over
	close(loaded)
	must(t, arrives(t, "the reload", reloaded), arrives(t, "the stop", served))
	if left := marked(mark); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	if _, err := b.Reload(); !errors.Is(err, wire.Unavailable) {
		t.Errorf("a reload after the stop: %v, want %s", err, wire.Unavailable)
	}
}

func TestAnInstanceThatIsKilledBeforeItRegistersWithTheNextBrokerHasFailed(t *testing.T) {
	told := tellsExits(t)
	at := brokertest.Socket(t)
	service, _ := actor(t)
	service.KeepAlive = servicefile.OnFailure
	_, was := taken(t, service, true, at, func(s *client.Session) { must(t, syscall.Kill(s.Peer().PID, syscall.SIGSTOP)) })
	b := brokertest.StartWith(t, broker.Config{Socket: at, Services: []servicefile.Service{service}})
	must(t, syscall.Kill(was.PID, syscall.SIGKILL))
	if d := comesTo(t, b, echoEndpoint, broker.ServiceRunning, was.Starts+1); told && d.Failures != 1 {
		t.Errorf("it is %+v", d)
	}
}

func TestAnOpenThatHadItsTurnComesBeforeThoseThatWait(t *testing.T) {
	if got, want := broker.JoinOrder(false, false, true, false), []int{2, 0, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("the order is %v, want %v", got, want)
	}
}

const (
	crowds  = 3   // services
	waiters = 128 // opens of each
)

// openAndWait has opens of several services wait, and prints how many are refused as too many.
func openAndWait() {
	var all []*net.UnixConn
	for n := range crowds {
		for range waiters {
			conn, err := connect(os.Getenv(socket.Variable))
			fail(err)
			fail(say(conn, wire.KindOpen, wire.Open{Endpoint: os.Getenv(argumentVariable) + strconv.Itoa(n)}))
			conn.SetDeadline(time.Now().Add(2 * time.Second))
			all = append(all, conn)
		}
	}
	var refused atomic.Int64
	var answering sync.WaitGroup
	for _, conn := range all {
		answering.Go(func() {
			if errors.Is(answer(conn), wire.OverQuota) {
				refused.Add(1)
			}
		})
	}
	answering.Wait()
	fmt.Println(refused.Load())
	io.Copy(io.Discard, os.Stdin)
}

func TestStrangersWhoWaitTakeNobodysPlaceButTheirOwn(t *testing.T) {
	needsRoot(t)
	const places = 128 // of one user
	var all []servicefile.Service
	for n := range crowds {
		name := "com.example.n" + strconv.Itoa(n)
		all = append(all, servicefile.Service{Name: name, Endpoints: []string{name}, Program: []string{"/bin/sleep", "1000"}, StartTimeout: time.Minute,
			StopTimeout: time.Second, Allow: servicefile.Allow{Open: ruled(t, "any")}})
	}
	b := brokertest.StartWith(t, broker.Config{Services: all})
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	p := playWith(t, asStranger(t), "waiters", "com.example.n", b.Socket)
	refused, err := strconv.Atoi(p.line(t))
	if must(t, err); refused != crowds*waiters-places {
		t.Errorf("%d of %d are refused, want all but %d", refused, crowds*waiters, places)
	}
	ask[broker.Status](t, b, broker.MethodStatus, nil)
}

// The guard is hasEnded: without, a start that comes between the end of an instance and that of its life is answered as if it had begun one.
func TestAStartBehindTheEndOfAnInstanceStartsTheNext(t *testing.T) {
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{played(t, "serve", echoEndpoint)}})
	d := ask[broker.ServiceDetails](t, b, broker.MethodStart, broker.ServiceRequest{Name: echoEndpoint})
	for n := int64(1); n <= 10; n++ {
		must(t, syscall.Kill(d.PID, syscall.SIGKILL))
		until(t, "it is known how it has ended", func() bool {
			last := inspected(t, b, echoEndpoint).Last
			return last != nil && last.Instance == n
		})
		if d = ask[broker.ServiceDetails](t, b, broker.MethodStart, broker.ServiceRequest{Name: echoEndpoint}); d.State != broker.ServiceRunning || d.Instance != n+1 {
			t.Fatalf("the start behind the end of instance %d: %+v", n, d.ServiceInfo)
		}
		if n%2 == 0 {
			ask[broker.ServiceDetails](t, b, broker.MethodReset, broker.ServiceRequest{Name: echoEndpoint})
		}
	}
}
