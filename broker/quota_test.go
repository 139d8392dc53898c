package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const (
	another = 65533 // a user who is neither nobody nor this one
	mute    = "com.example.mute"
)

// A taking is what a process is told to take of a broker.
type taking struct {
	Kind quota.Kind
	N    int
	From int // the number of the first service to register
}

// takeAsTold takes what its argument says, prints the first refusal, if there is to be one, and keeps what it has.
func takeAsTold() {
	var what taking
	fail(json.Unmarshal([]byte(os.Getenv(argumentVariable)), &what))
	at, refusals := os.Getenv(socket.Variable), make(chan error, what.N)
	var keep []any
	for n := range what.N {
		switch what.Kind {
		case quota.Sessions, quota.BrokerSessions:
			endpoint := echoEndpoint
			if what.Kind == quota.BrokerSessions {
				endpoint = broker.Endpoint
			}
			s, err := client.Dial(context.Background(), endpoint, client.Options{NoWait: true})
			keep = append(keep, s)
			if err != nil {
				refusals <- err
			}
		case quota.Registrations:
			name := mute + strconv.Itoa(what.From+n)
			control, err := register(at, wire.Register{Service: name, Endpoints: []string{name}})
			keep = append(keep, control)
			if err != nil {
				refusals <- err
			}
		default:
			conn, err := connect(at)
			fail(err)
			conn.SetDeadline(time.Time{})
			keep = append(keep, conn)
			if what.Kind == quota.Waiting {
				fail(say(conn, wire.KindOpen, wire.Open{Endpoint: mute}))
			} else if what.Kind == quota.Descriptors {
				fail(say(conn, wire.KindOpen, wire.Open{Endpoint: echoEndpoint}))
			}
			go func() {
				err := answer(conn)
				if err == nil { // routed
					err = answer(conn)
				}
				if errors.Is(err, wire.OverQuota) {
					refusals <- err
				}
			}()
		}
	}
	err := <-refusals
	fail(json.NewEncoder(os.Stdout).Encode(granted{Code: wire.CodeOf(err), Text: err.Error()}))
	os.Stdin.Read(make([]byte, 1))
	fmt.Fprintln(os.Stderr, keep...)
}

// takes starts a process of a user that takes something of a broker.
func takes(t *testing.T, program, at string, uid int, what taking) player {
	t.Helper()
	argument, err := json.Marshal(what)
	must(t, err)
	cmd := asStranger(t)
	cmd.Path, cmd.Args, cmd.Dir = program, []string{program}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: nobody}}
	return playWith(t, cmd, "takes", string(argument), at)
}

// serving starts a broker of the test's own process that the test can look into; something may be done before it serves.
func serving(t *testing.T, c broker.Config, before ...func(*broker.Broker)) (*broker.Broker, *brokertest.Broker) {
	t.Helper()
	c.Socket = brokertest.Socket(t)
	must(t, os.Chmod(filepath.Dir(c.Socket), 0o755))
	b, err := broker.New(c)
	must(t, err)
	for _, do := range before {
		do(b)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-served)
	})
	return b, brokertest.At(t, c.Socket)
}

// few are the defaults, with little of one kind for each of the others.
func few(k quota.Kind, n int) func() (quota.Limits, []*servicefile.Problem) {
	return func() (quota.Limits, []*servicefile.Problem) {
		all := quota.Defaults()
		all.Others[k] = n
		return all, nil
	}
}

// The guard for each kind is where the broker charges it: without, the first user is not refused. Those for what is given back are where it discharges it.
func TestWhoHasItsShareIsRefusedMoreAndNobodyElseIs(t *testing.T) {
	needsRoot(t)
	program := asStranger(t).Path
	for _, k := range quota.Kinds() {
		t.Run(k.Key(), func(t *testing.T) {
			t.Parallel()
			const share = 3
			n, held := share+1, k
			if k == quota.Opens {
				n, held = 40, quota.Connections // more than a machine makes in 7 s, at 3 a second
			}
			l := &log{}
			echo := played(t, "serve", echoEndpoint)
			echo.Allow.Open = ruled(t, "any")
			echo.Program[len(echo.Program)-1] = program
			declared := []servicefile.Service{echo, {Name: mute, Endpoints: []string{mute}, Program: []string{"/bin/sleep", "1000"}, StartTimeout: time.Minute, StopTimeout: time.Second,
				Allow: servicefile.Allow{Open: ruled(t, "any")}}}
			for n := range share + 1 {
				name := mute + strconv.Itoa(n)
				declared = append(declared, servicefile.Service{Name: name, Endpoints: []string{name}, Allow: servicefile.Allow{Register: ruled(t, "any")}})
			}
			b, at := serving(t, broker.Config{Quotas: few(k, share), Services: declared, Logger: l.logger()})
			s := at.Dial(echoEndpoint, client.Options{})
			if k == quota.Descriptors {
				halt(t, s.Peer().PID)
				t.Cleanup(func() { syscall.Kill(s.Peer().PID, syscall.SIGCONT) })
			}
			first := takes(t, program, at.Socket, nobody, taking{Kind: k, N: n})
			var g granted
			must(t, json.Unmarshal([]byte(first.line(t)), &g))
			for _, says := range []string{"uid 65534", strconv.Itoa(share), k.String()} {
				if g.Code != wire.OverQuota || !strings.Contains(g.Text, says) {
					t.Errorf("one more than its share: %+v, want %s and %q", g, wire.OverQuota, says)
				}
			}
			if k != quota.Opens {
				until(t, "it has its share", func() bool { return b.Has(nobody, k) == share })
			}
			second := takes(t, program, at.Socket, another, taking{Kind: k, N: 1, From: share})
			until(t, "another user has one", func() bool { return b.Has(another, held) == 1 })
			status := ask[broker.Status](t, at, broker.MethodStatus, nil)
			if status.OverQuota < 1 || status.Denied != 0 {
				t.Errorf("the status counts %d, and %d denials", status.OverQuota, status.Denied)
			}
			until(t, "it is logged", func() bool { return l.count("over quota", "uid=65534", "code=over_quota") > 0 })
			told := watching(t, at, broker.MonitorRequest{From: 1, Kinds: []string{broker.EventOverQuota}}).next()
			if told.Client == nil || told.Client.UID != nobody || told.Client.PID != first.cmd.Process.Pid || told.Code != wire.OverQuota || !strings.Contains(told.Text, k.String()) {
				t.Errorf("the event is %+v", told)
			}
			if k == quota.Registrations && !strings.HasPrefix(told.Service, mute) { // whoever administers it is told
				t.Errorf("the event names the service %q", told.Service)
			}
			if k == quota.Descriptors {
				must(t, syscall.Kill(s.Peer().PID, syscall.SIGCONT))
			}
			first.kill()
			second.kill()
			until(t, "those who are gone have nothing", func() bool { return b.Has(nobody, held) == 0 && b.Has(another, held) == 0 })
		})
	}
}

// The guard is welcomeProgram: without, the instance is refused like any other process of its user.
func TestAnInstanceThatWasStartedRegistersAgainWhateverOthersOfItsUserDo(t *testing.T) {
	needsRoot(t)
	program := asStranger(t).Path
	s := played(t, "serve", echoEndpoint)
	s.Program[len(s.Program)-1], s.User = program, "nobody"
	b := brokertest.StartWith(t, broker.Config{LeaveInstances: true, Quotas: few(quota.Connections, 0), Services: []servicefile.Service{s}})
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	stopsAtLast(t, b)
	before := b.Dial(echoEndpoint, client.Options{})
	b.Restart()
	until(t, "it has registered again", func() bool { return inspected(t, b, echoEndpoint).State == broker.ServiceRunning })
	if after := b.Dial(echoEndpoint, client.Options{}); after.Peer().PID != before.Peer().PID {
		t.Errorf("process %d serves, want %d", after.Peer().PID, before.Peer().PID)
	}
	g := asks(t, program, b.Socket, syscall.Credential{Uid: nobody, Gid: nobody}).ask(t, wish{Register: mute})
	if g.Code != wire.OverQuota || !strings.Contains(g.Text, "uid 65534") {
		t.Errorf("another process of its user: %+v, want %s", g, wire.OverQuota)
	}
}

// serveAndOpen serves an endpoint, and opens one of the broker's own whenever it is told to.
func serveAndOpen() {
	mux := echoMux()
	services.Handle(mux, "open", func(ctx context.Context, _ any) (granted, error) {
		s, err := client.Dial(ctx, broker.Endpoint, client.Options{NoWait: true})
		if err == nil {
			s.Close()
			return granted{}, nil
		}
		return granted{Code: wire.CodeOf(err), Text: err.Error()}, nil
	})
	fail(services.Server{Endpoints: map[string]*services.Mux{os.Getenv(argumentVariable): mux}}.Serve(context.Background()))
}

// The guards are what welcomeProgram asks: whether it is the program, and not another process by its number, and whether it registers.
func TestThePlaceOfAProgramIsForItsRegistrationAlone(t *testing.T) {
	needsRoot(t)
	program := asStranger(t).Path
	service := played(t, "serveandopen", echoEndpoint)
	service.Program[len(service.Program)-1], service.User = program, "nobody"
	b, at := serving(t, broker.Config{Quotas: few(quota.Connections, 0), Services: []servicefile.Service{service}})
	s := at.Dial(echoEndpoint, client.Options{})
	if g, err := client.Call[granted](within(t, patience), s, "open", nil); err != nil || g.Code != wire.OverQuota || !strings.Contains(g.Text, "uid 65534") {
		t.Errorf("the program itself opens a session: %+v, %v, want %s", g, err, wire.OverQuota)
	}
	stranger := asks(t, program, at.Socket, syscall.Credential{Uid: nobody, Gid: nobody})
	b.Mistake(stranger.cmd.Process.Pid, echoEndpoint)
	if g := stranger.ask(t, wish{Register: echoEndpoint}); g.Code != wire.OverQuota || !strings.Contains(g.Text, "uid 65534") {
		t.Errorf("another process with its number: %+v, want %s", g, wire.OverQuota)
	}
}

// The guard is that welcomeProgram leaves the program's place with its first frame: without, the first registration has it for as long as it lasts.
func TestAnInstanceThatWasStartedRegistersAgainAndAgain(t *testing.T) {
	needsRoot(t)
	s := played(t, "serve", echoEndpoint)
	s.Program[len(s.Program)-1], s.User = asStranger(t).Path, "nobody"
	b, at := serving(t, broker.Config{Quotas: few(quota.Connections, 0), Services: []servicefile.Service{s}})
	first := at.Dial(echoEndpoint, client.Options{}) // lives on: so each registration lasts until the next one
	told := watching(t, at, broker.MonitorRequest{From: 1, Kinds: []string{broker.EventInstanceRegistered}})
	for n := range 4 {
		if e := told.next(); e.PID != first.Peer().PID {
			t.Fatalf("registration %d is %+v", n+1, e)
		}
		b.CutControl(echoEndpoint)
	}
}

// tellOfAnother registers on its inherited control connection, and tells of a session of another user's that there is not.
func tellOfAnother() {
	fd, err := strconv.Atoi(os.Getenv(services.ControlVariable))
	fail(err)
	f := os.NewFile(uintptr(fd), "control")
	conn, err := socket.FromFile(f)
	fail(err)
	fail(f.Close())
	info := liveSession(echoEndpoint)
	info[0].Client.UID = another
	fail(say(conn, wire.KindRegister, wire.Register{Service: echoEndpoint, Instance: 1, Endpoints: []string{echoEndpoint}, Sessions: info}))
	fail(answer(conn))
	session.NewControl(conn, session.Config{Endpoint: "control", Opener: true, Handler: services.NewMux()}).Wait()
}

// The guard is that who was started by this broker is not believed whose its sessions are: without, any instance can use up the sessions of any user.
func TestAnInstanceThatWasStartedChargesNobodyForSessionsThatItInvents(t *testing.T) {
	needsRoot(t)
	s := played(t, "lies", echoEndpoint)
	s.Program[len(s.Program)-1], s.User, s.RunAtLoad = asStranger(t).Path, "nobody", true
	b, at := serving(t, broker.Config{Services: []servicefile.Service{s}})
	until(t, "it has told of its session", func() bool { return len(sessions(t, at, broker.SessionsRequest{Endpoint: echoEndpoint})) == 1 })
	if n := b.Has(another, quota.Sessions); n != 0 {
		t.Errorf("another user is charged for %d sessions", n)
	}
}

// registerAsTwo registers, and again when it has become another user. It prints a line then.
func registerAsTwo() {
	r := wire.Register{Service: mute, Endpoints: []string{mute}, Sessions: liveSession(mute)}
	control, err := register(os.Getenv(socket.Variable), r)
	fail(err)
	lose(control)
	fail(syscall.Setuid(another))
	for control, err = register(os.Getenv(socket.Variable), r); errors.Is(err, wire.Conflict); control, err = register(os.Getenv(socket.Variable), r) {
		// the broker does not know yet that the one before is lost
	}
	fail(err)
	fmt.Println("registered")
	os.Stdin.Read(make([]byte, 1))
	lose(control)
}

// The guard is the payer that an instance has from the one before it: without, the first user is charged for good, and the second has less than nothing.
func TestARegistrationIsGivenBackToWhomItWasChargedTo(t *testing.T) {
	needsRoot(t)
	b, at := serving(t, broker.Config{Services: []servicefile.Service{
		{Name: mute, Endpoints: []string{mute}, Allow: servicefile.Allow{Register: ruled(t, "any")}},
	}})
	p := play(t, "drops", "", at.Socket)
	p.line(t)
	if first, second := b.Has(0, quota.Registrations), b.Has(another, quota.Registrations); first != 1 || second != 0 {
		t.Errorf("while it is registered uid 0 has %d and the other %d, want 1 and none", first, second)
	}
	p.kill()
	until(t, "nobody has anything", func() bool { return b.Has(0, quota.Registrations) == 0 && b.Has(another, quota.Registrations) == 0 })
}

func TestAReloadReadsTheQuotasAndOneThatIsWrongChangesNothing(t *testing.T) {
	needsRoot(t)
	program := asStranger(t).Path
	var share atomic.Int64
	share.Store(64)
	b := brokertest.StartWith(t, broker.Config{
		Load: func() ([]servicefile.Service, []*servicefile.Problem) { return nil, nil },
		Quotas: func() (quota.Limits, []*servicefile.Problem) {
			if share.Load() < 0 {
				return quota.Limits{}, []*servicefile.Problem{{File: quota.Name, Line: 2, Key: "quota.others.connections", Rule: "is wrong"}}
			}
			limits, _ := few(quota.Connections, int(share.Load()))()
			return limits, nil
		},
	})
	must(t, os.Chmod(filepath.Dir(b.Socket), 0o755))
	stranger := asks(t, program, b.Socket, syscall.Credential{Uid: nobody, Gid: nobody})
	for _, c := range []struct {
		share    int64
		problems int
		code     wire.Code
	}{{64, 0, ""}, {0, 0, wire.OverQuota}, {-1, 1, wire.OverQuota}, {5, 0, ""}, {-1, 1, ""}} {
		share.Store(c.share)
		done := ask[broker.Reloaded](t, b, broker.MethodReload, nil)
		if len(done.Problems) != c.problems {
			t.Errorf("with %d: %+v, want %d problems", c.share, done.Problems, c.problems)
		}
		if g := stranger.ask(t, wish{Register: mute}); g.Code != c.code && (c.code != "" || g.Code != wire.NotPermitted) {
			t.Errorf("with %d: %+v, want %q", c.share, g, c.code)
		}
	}
}
