package services_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// openOnce opens a session, prints its id, and stays until its input ends.
func openOnce() {
	s, err := client.Dial(context.Background(), endpoint, client.Options{})
	if err != nil {
		panic(err)
	}
	fmt.Println(s.ID())
	io.Copy(io.Discard, os.Stdin)
}

// openAs opens a session from a program with this name, ends it, and returns its id.
func openAs(t *testing.T, b *brokertest.Broker, name string) string {
	t.Helper()
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, program, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), noSleep, roleVariable+"=opener", "FAIRLEAD_SOCKET="+b.Socket)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); cmd.Wait() }()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	id, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(id)
}

func TestNoSessionHoweverOddCostsAnInstanceItsRegistration(t *testing.T) {
	b := brokertest.Start(t)
	opened := make(chan *session.Session, 100)
	var registrations atomic.Int64
	server := echoServer(endpoint)
	server.Ready = func() { registrations.Add(1) }
	server.Opened = func(s *session.Session) { opened <- s }
	server.Accept = func(_ context.Context, o services.Opening) error {
		if o.Title == "no" {
			return &wire.Error{Text: "no"}
		}
		return nil
	}
	b.Serve(server)
	theirs := func(id string) *session.Session { // the service's side; others may be told of late
		for {
			if s := wait(t, "the session", opened); s.ID() == id {
				return s
			}
		}
	}
	long := strings.Repeat("x", 10<<10)
	for _, test := range []struct {
		name string
		open func() (id, title string) // what is closed then
	}{
		{"refused without a code", func() (string, string) {
			_, err := client.Dial(within(t, 10*time.Second), endpoint, client.Options{Socket: b.Socket, Title: "no"})
			if wire.CodeOf(err) != wire.Refused {
				t.Errorf("refused: %v, want %s", err, wire.Refused)
			}
			return "", "no"
		}},
		{"a program's name that is no text", func() (string, string) { return openAs(t, b, strings.Repeat("\xff", 100)), "" }},
		{"a long program's name", func() (string, string) { return openAs(t, b, strings.Repeat("é", 120)), "" }},
		{"a client's long text", func() (string, string) {
			s := b.Dial(endpoint, client.Options{})
			s.Shutdown(within(t, 10*time.Second), wire.End{Code: wire.Invalid, Text: long})
			return s.ID(), ""
		}},
		{"a service's long text", func() (string, string) {
			s := b.Dial(endpoint, client.Options{})
			theirs(s.ID()).Abort(wire.End{Code: wire.Invalid, Origin: wire.Local, Text: long})
			return s.ID(), ""
		}},
		{"an end without a code", func() (string, string) {
			s := b.Dial(endpoint, client.Options{})
			theirs(s.ID()).Abort(wire.End{Text: "\xff"})
			return s.ID(), ""
		}},
		{"a long title", func() (string, string) {
			title := strings.Repeat("\xfe", wire.MaxTitle)
			s := b.Dial(endpoint, client.Options{Title: title})
			s.Close()
			return s.ID(), title
		}},
	} {
		id, title := test.open()
		until(t, test.name+" is listed as closed", func() bool {
			for _, s := range sessions(t, b, broker.SessionClosed) {
				if s.Endpoint == endpoint && (id == "" || s.ID == id) && s.Title == title {
					return true
				}
			}
			return false
		})
		if n := registrations.Load(); n != 1 {
			t.Fatalf("%s: %d registrations", test.name, n)
		}
		echo(t, b.Dial(endpoint, client.Options{}))
	}
}

func TestSessionsThatEndWithoutABrokerAreToldInBatchesThatFit(t *testing.T) {
	const all = 2 * wire.MaxBatch
	b := brokertest.Start(t)
	opened := make(chan *session.Session, all)
	server := echoServer(endpoint)
	server.Opened = func(s *session.Session) { opened <- s }
	b.Serve(server)
	title := strings.Repeat("t", wire.MaxTitle)
	for range all {
		b.Dial(endpoint, client.Options{Title: title})
	}
	b.Stop()
	for range all {
		wait(t, "a session", opened).Abort(wire.End{Code: wire.Invalid, Origin: wire.Local, Text: strings.Repeat("x", 10<<10)})
	}
	b.Restart()
	until(t, "all are listed as closed", func() bool {
		listed := 0
		for _, s := range sessions(t, b, broker.SessionClosed) {
			if s.Title == title && len(s.End.Text) == wire.MaxText {
				listed++
			}
		}
		return listed == all
	})
}

// The guards are returns, for functions that do not return, and drainWait.
func TestAServerStopsWithinABoundWhateverItsAuthorsFunctionsDo(t *testing.T) {
	t.Parallel()
	const bound = 20 * time.Second
	for _, test := range []struct {
		name   string
		accept func(ctx context.Context, forever <-chan struct{})
		handle func(forever <-chan struct{})
		drain  time.Duration
	}{
		{"accept waits for its context", func(ctx context.Context, _ <-chan struct{}) { <-ctx.Done() }, nil, 100 * time.Millisecond},
		{"accept never returns", func(_ context.Context, forever <-chan struct{}) { <-forever }, nil, 100 * time.Millisecond},
		{"a handler never returns", nil, func(forever <-chan struct{}) { <-forever }, 100 * time.Millisecond},
		{"a handler never returns, and has the usual time", nil, func(forever <-chan struct{}) { <-forever }, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := brokertest.Start(t)
			forever, began := make(chan struct{}), make(chan struct{}, 10)
			mux := services.NewMux()
			services.Handle(mux, "hang", func(context.Context, text) (text, error) {
				began <- struct{}{}
				test.handle(forever)
				return text{}, nil
			})
			server := services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}, Drain: test.drain}
			if test.accept != nil {
				server.Accept = func(ctx context.Context, _ services.Opening) error {
					began <- struct{}{}
					test.accept(ctx, forever)
					return nil
				}
			}
			running := b.Serve(server)
			release := sync.OnceFunc(func() { close(forever) })
			t.Cleanup(release) // before the server's own
			asking := make(chan error, 1)
			go func() {
				s, err := client.Dial(within(t, 2*bound), endpoint, client.Options{Socket: b.Socket, NoWait: true})
				if err == nil {
					defer s.Close()
				}
				if err == nil && test.handle != nil {
					_, err = client.Call[text](within(t, 2*bound), s, "hang", text{})
				}
				asking <- err
			}()
			wait(t, "the author's function", began)
			stopped := make(chan error, 1)
			go func() { stopped <- running.Stop() }()
			select {
			case err := <-stopped:
				if err != nil {
					t.Errorf("serve: %v", err)
				}
			case <-time.After(bound):
				t.Fatalf("the server has not stopped within %v", bound)
			}
			release()
			if err := wait(t, "the client's end", asking); err == nil {
				t.Error("a client was served by a server that has stopped")
			}
		})
	}
}

func TestAPanicInAcceptRefusesThatClientOnly(t *testing.T) {
	b := brokertest.Start(t)
	server := echoServer(endpoint)
	server.Accept = func(_ context.Context, o services.Opening) error {
		if o.Title == "panic" {
			panic("no")
		}
		return nil
	}
	b.Serve(server)
	before := b.Dial(endpoint, client.Options{})
	if _, err := client.Dial(within(t, 10*time.Second), endpoint, client.Options{Socket: b.Socket, Title: "panic"}); wire.CodeOf(err) != wire.Refused {
		t.Errorf("%v, want %s", err, wire.Refused)
	}
	echo(t, before)
	echo(t, b.Dial(endpoint, client.Options{}))
}
