package broker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// A log keeps what is logged.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// count returns how many lines have all of words.
func (l *log) count(words ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
lines:
	for line := range strings.Lines(l.text.String()) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue lines
			}
		}
		n++
	}
	return n
}

func (l *log) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// shell declares a service that is a shell's script, which finds its argument in $1.
func shell(name, script, argument string) servicefile.Service {
	return servicefile.Service{
		Name: name, Endpoints: []string{name}, Program: []string{"/bin/sh", "-c", script, "sh", argument},
		StartTimeout: 2 * time.Second, ThrottleInterval: time.Millisecond,
	}
}

// echoService declares a service that this test's binary serves.
func echoService(role string) (servicefile.Service, error) {
	program, err := os.Executable()
	return servicefile.Service{
		Name: echoEndpoint, Endpoints: []string{echoEndpoint},
		Program: []string{"/usr/bin/env", roleVariable + "=" + role, argumentVariable + "=" + echoEndpoint, noSleep, program},
	}, err
}

// malformed is a registration without endpoints, in the escapes of printf(1): header and body, which is nil.
const malformed = `\001\005\000\000\000\000\000\000\000\000\000\001\300`

func TestAFailedStartLeavesNeitherProcessNorDescriptor(t *testing.T) {
	const rounds = 8
	l, pids := &log{}, filepath.Join(t.TempDir(), "pids")
	kinds := map[string]wire.Code{"com.example.exits": wire.StartFailed, "com.example.sleeps": wire.StartTimeout, "com.example.malformed": wire.StartTimeout}
	b := brokertest.StartWith(t, broker.Config{Logger: l.logger(), Services: []servicefile.Service{
		shell("com.example.exits", "exit 1", ""),
		shell("com.example.sleeps", `echo $$ >> "$1"; exec sleep 1000`, pids),
		shell("com.example.malformed", `echo $$ >> "$1"; printf '`+malformed+`' >&3; exec sleep 1000`, pids),
	}})
	ask[broker.Status](t, b, broker.MethodStatus, nil)
	keepsWhatIsLeft(t)
	files, goroutines := descriptors(t, os.Getpid()), runtime.NumGoroutine()
	var starting sync.WaitGroup
	for name, want := range kinds {
		starting.Go(func() {
			for range rounds {
				ask[broker.ServiceDetails](t, b, broker.MethodReset, broker.ServiceRequest{Name: name}) // else it is suspended soon
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				if _, err := client.Dial(ctx, name, client.Options{Socket: b.Socket}); !errors.Is(err, want) {
					t.Errorf("open %s: %v, want %s", name, err, want)
				}
				cancel()
			}
		})
	}
	starting.Wait()
	if n := l.count("registration refused", "code="+string(wire.Malformed)); n == 0 {
		t.Error("no malformed registration came")
	}
	settles(t, files, goroutines)
	text, err := os.ReadFile(pids)
	must(t, err)
	for line := range strings.Lines(string(text)) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		must(t, err)
		until(t, fmt.Sprintf("process %d is gone", pid), func() bool { return !sleeps(pid) })
	}
}

// sleeps reports whether a process that a service's script has become is there.
func sleeps(pid int) bool {
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && string(command) == "sleep\x001000\x00"
}

// recorded returns the instance's number in a service's record.
func recorded(t *testing.T, b *brokertest.Broker, service string) (r struct{ Number int64 }) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(b.Socket+".d", service+".json"))
	must(t, err)
	must(t, json.Unmarshal(text, &r))
	return r
}

func TestTheNumberOfAnInstanceIsWrittenDownBeforeItIsStarted(t *testing.T) {
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{
		{Name: startedEndpoint, Endpoints: []string{startedEndpoint}, Program: []string{"/does/not/exist"}, ThrottleInterval: time.Millisecond},
	}})
	for want := int64(1); want <= 3; want++ {
		if _, err := client.Dial(within(t, patience), startedEndpoint, client.Options{Socket: b.Socket}); !errors.Is(err, wire.StartFailed) {
			t.Fatalf("%v, want %s", err, wire.StartFailed)
		}
		if got := recorded(t, b, startedEndpoint).Number; got != want {
			t.Errorf("number %d is recorded of what could not be started, want %d", got, want)
		}
	}
}

func TestARecordSaysWithWhichNumberToGoOnAndAGarbledOneWarns(t *testing.T) {
	echo, err := echoService("serve")
	must(t, err)
	for _, test := range []struct {
		name, record string
		want         int64
		warnings     int
	}{
		{"none", "", 1, 0},
		{"a number", `{"version":1,"service":"com.example.echo","number":41}`, 42, 0},
		{"garbled", `{"version":1,"num`, 1, 1},
		{"of another version", `{"version":2,"number":41}`, 1, 1},
		{"a negative number", `{"version":1,"number":-41}`, 1, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := &log{}
			at := brokertest.Socket(t)
			if test.record != "" {
				must(t, os.Mkdir(at+".d", 0o700), os.WriteFile(filepath.Join(at+".d", echoEndpoint+".json"), []byte(test.record), 0o600))
			}
			b := brokertest.StartWith(t, broker.Config{Socket: at, Services: []servicefile.Service{echo}, Logger: l.logger()})
			b.Dial(echoEndpoint, client.Options{}).Close()
			if i := running(t, b, echoEndpoint); i.Instance != test.want || recorded(t, b, echoEndpoint).Number != test.want {
				t.Errorf("instance %d, want %d", i.Instance, test.want)
			}
			if n := l.count("level=WARN", "record"); n != test.warnings {
				t.Errorf("%d warnings, want %d", n, test.warnings)
			}
		})
	}
}

// running waits for a service's instance.
func running(t *testing.T, b *brokertest.Broker, service string) (i broker.ServiceInfo) {
	t.Helper()
	until(t, service+" is registered", func() bool {
		for _, i = range ask[broker.Services](t, b, broker.MethodServices, nil).Services {
			if i.Name == service && i.State == broker.ServiceRunning {
				return true
			}
		}
		return false
	})
	return i
}

// serveBroker is a broker of the echo service. It prints a line when it listens.
func serveBroker() {
	echo, err := echoService("serve")
	fail(err)
	b, err := broker.New(broker.Config{Socket: os.Getenv(socket.Variable), Services: []servicefile.Service{echo}})
	fail(err)
	fmt.Println("listening")
	fail(b.Serve(context.Background()))
}

func TestABrokerThatIsStoppedStopsWhatAnEarlierOneHasStartedAndNothingElse(t *testing.T) {
	at := brokertest.Socket(t)
	earlier := play(t, "broker", "", at)
	earlier.line(t)
	s, err := client.Dial(within(t, patience), echoEndpoint, client.Options{Socket: at})
	must(t, err)
	defer s.Close()
	started, err := process.Open(s.Peer().PID)
	must(t, err)
	defer started.Close()
	earlier.kill()

	echo, err := echoService("serve")
	must(t, err)
	const other = "com.example.other"
	b := brokertest.StartWith(t, broker.Config{Socket: at, Services: []servicefile.Service{echo, {
		Name: other, Endpoints: []string{other}, Program: []string{"/bin/false"},
	}}})
	hand := play(t, "serve", other, at)
	hand.line(t)
	byHand, err := process.Open(hand.cmd.Process.Pid)
	must(t, err)
	defer byHand.Close()
	if i := running(t, b, echoEndpoint); i.PID != started.PID() || i.Instance != 1 {
		t.Errorf("instance %d, pid %d, want the first, pid %d", i.Instance, i.PID, started.PID())
	}
	running(t, b, other)
	b.Stop()
	if !started.Gone() {
		t.Error("the instance that an earlier broker has started is left")
	}
	if byHand.Gone() {
		t.Error("the instance that was started by hand is stopped")
	}
}

func TestABrokerThatIsStoppedWaitsForAnInstanceThatExitsAfterItHasLetGo(t *testing.T) {
	lingering, err := echoService("linger")
	must(t, err)
	l := &log{}
	b := brokertest.StartWith(t, broker.Config{Services: []servicefile.Service{lingering}, Logger: l.logger()})
	started, err := process.Open(b.Dial(echoEndpoint, client.Options{}).Peer().PID)
	must(t, err)
	defer started.Close()
	b.Stop()
	if !started.Gone() || l.count("killed") > 0 {
		t.Errorf("gone: %t, killed: %d times", started.Gone(), l.count("killed"))
	}
}
