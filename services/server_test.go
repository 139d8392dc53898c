package services_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

type text struct{ Text string }

func (t *text) Validate() error {
	if t.Text == "bad" {
		return wire.Errorf(wire.Malformed, "bad text")
	}
	return nil
}

func TestAStoppedServerAnswersWhatIsInFlightAndRefusesTheRest(t *testing.T) {
	b := brokertest.Start(t)
	began, proceed := make(chan struct{}), make(chan struct{})
	mux := services.NewMux()
	services.Handle(mux, "slow", func(context.Context, text) (text, error) {
		close(began)
		<-proceed
		return text{"done"}, nil
	})
	services.Handle(mux, "quick", func(_ context.Context, r text) (text, error) { return r, nil })
	server := b.Serve(services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}})
	s := b.Dial(endpoint, client.Options{})
	slow := make(chan error, 1)
	go func() {
		reply, err := client.Call[text](within(t, 10*time.Second), s, "slow", text{})
		if err == nil && reply.Text != "done" {
			err = errors.New(reply.Text)
		}
		slow <- err
	}()
	wait(t, "the handler", began)
	stopped := make(chan error, 1)
	go func() { stopped <- server.Stop() }()
	for ctx := within(t, 10*time.Second); !s.Terminating(); { // until then calls are answered
		if _, err := client.Call[text](ctx, s, "quick", text{}); err != nil && !errors.Is(err, wire.Terminating) {
			t.Fatal(err)
		}
	}
	if _, err := client.Call[text](within(t, 5*time.Second), s, "quick", text{}); !errors.Is(err, wire.Terminating) {
		t.Errorf("call after terminating: %v, want %s", err, wire.Terminating)
	}
	close(proceed)
	if err := wait(t, "the reply in flight", slow); err != nil {
		t.Errorf("call in flight: %v", err)
	}
	if err := wait(t, "the server's end", stopped); err != nil {
		t.Errorf("Serve: %v", err)
	}
	wait(t, "the session's end", s.Done())
	if end := s.End(); end.Code != wire.Interrupted || end.Origin != wire.Peer {
		t.Errorf("end %+v, want interrupted by the peer", end)
	}
}

func TestEachSideMayCallTheOther(t *testing.T) {
	b := brokertest.Start(t)
	mux := services.NewMux()
	services.Handle(mux, "ask me", func(ctx context.Context, r text) (text, error) {
		return client.Call[text](ctx, services.FromContext(ctx), "upper", r)
	})
	b.Serve(services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}})
	mine := services.NewMux()
	services.Handle(mine, "upper", func(_ context.Context, r text) (text, error) { return text{strings.ToUpper(r.Text)}, nil })
	s := b.Dial(endpoint, client.Options{Handler: mine})
	reply, err := client.Call[text](within(t, 5*time.Second), s, "ask me", text{"hi"})
	if err != nil || reply.Text != "HI" {
		t.Errorf("%+v, %v", reply, err)
	}
}

func TestABadCallNeverReachesTheHandler(t *testing.T) {
	b := brokertest.Start(t)
	mux := services.NewMux()
	services.Handle(mux, "call", func(_ context.Context, r text) (text, error) {
		if r.Text == "panic" {
			panic(r.Text)
		}
		t.Errorf("the handler got %+v", r)
		return r, nil
	})
	services.HandleOneWay(mux, "tell", func(context.Context, text) error { return nil })
	services.HandleStream(mux, "stream", func(_ context.Context, s *session.Stream) error {
		io.Copy(s, s)
		return s.CloseWrite()
	})
	b.Serve(services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}})
	s := b.Dial(endpoint, client.Options{})
	for _, test := range []struct {
		method  string
		request any
		want    wire.Code
	}{
		{"call", []int{1}, wire.Malformed},
		{"call", text{"bad"}, wire.Malformed},
		{"call", text{"panic"}, wire.Internal},
		{"tell", text{}, wire.UnknownMethod},
		{"stream", text{}, wire.UnknownMethod},
		{"none\x1b[2J", text{}, wire.UnknownMethod},
	} {
		err := s.Call(within(t, 5*time.Second), test.method, test.request, nil)
		if !errors.Is(err, test.want) || strings.ContainsRune(err.Error(), '\x1b') {
			t.Errorf("%s: %q, want %s", test.method, err, test.want)
		}
	}
	if err := s.Send(within(t, 5*time.Second), "tell", text{}); err != nil {
		t.Errorf("the session is not whole: %v", err)
	}
}

func TestASessionEndsWithItsClientsProcessAlsoIfAChildInheritedTheSocket(t *testing.T) {
	b := brokertest.Start(t)
	opened := make(chan services.Opening, 1)
	mux := services.NewMux()
	b.Serve(services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}, Accept: func(_ context.Context, o services.Opening) error {
		opened <- o
		return nil
	}})
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=heir", "FAIRLEAD_SOCKET="+b.Socket)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	heir, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(heir, syscall.SIGKILL)
	if o := wait(t, "the opening", opened); o.Client.PID != cmd.Process.Pid {
		t.Errorf("client %d, want %d", o.Client.PID, cmd.Process.Pid)
	}
	cmd.Process.Kill()
	cmd.Wait()
	ended := ends(t, b, cmd.Process.Pid)
	if ended.Code != wire.Invalid || ended.Origin != wire.Peer {
		t.Errorf("end %+v, want invalid by the peer", ended)
	}
	if err := syscall.Kill(heir, 0); err != nil {
		t.Errorf("the child that holds the socket is gone: %v", err)
	}
}

// ends waits for the broker to list the closed session of a client, and returns its end.
func ends(t *testing.T, b *brokertest.Broker, pid int) wire.End {
	t.Helper()
	operator := b.Dial(broker.Endpoint, client.Options{})
	for ctx := within(t, 10*time.Second); ; {
		list, err := brokertest.Sessions(ctx, operator, broker.SessionsRequest{State: broker.SessionClosed})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			if s.Client.PID == pid && s.Endpoint == endpoint {
				return *s.End
			}
		}
	}
}
