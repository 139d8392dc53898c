package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// stranger answers every connection at a socket with a text, and then reads what comes.
func stranger(t *testing.T, answer string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, answer)
			io.Copy(io.Discard, c) // until who dialed lets go
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return path
}

// frames are the bytes of frames, one of each kind with its value.
func frames(t *testing.T, bodies map[wire.Kind]any, kinds ...wire.Kind) string {
	t.Helper()
	var b []byte
	for _, kind := range kinds {
		f, err := wire.NewFrame(kind, 0, bodies[kind])
		if err != nil {
			t.Fatal(err)
		}
		b = f.Append(b)
	}
	return string(b)
}

func TestWhatListensAndIsNoBrokerIsToldAtOnce(t *testing.T) {
	for name, answer := range map[string]string{
		"another protocol":     "220 mail.example.com ESMTP\r\n",
		"another version":      "\x02\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		"no answer to an open": "\x01\x22\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		"a session without an id": frames(t, map[wire.Kind]any{wire.KindRouted: wire.Routed{Session: "x", Service: "s"}, wire.KindAccepted: wire.Accepted{}},
			wire.KindRouted, wire.KindAccepted),
	} {
		path := stranger(t, answer)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		s, err := client.Dial(ctx, "com.example.test", client.Options{Socket: path}) // although it would wait for a broker
		cancel()
		if err == nil {
			s.Abort(wire.End{})
		}
		if e, ok := errors.AsType[*client.StrangerError](err); !ok || e.Path != path || !errors.Is(err, wire.Unsupported) && !errors.Is(err, wire.Malformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAServiceThatBreaksTheProtocolMakesNoStrangerOfTheBroker(t *testing.T) {
	routed := wire.Routed{Session: session.NewID(), Service: "com.example.test"}
	for name, then := range map[string]wire.Kind{"no answer to an open": wire.KindFinish, "a feature that was not offered": wire.KindAccepted} {
		t.Setenv("FAIRLEAD_LANE", "0")
		bodies := map[wire.Kind]any{wire.KindRouted: routed, wire.KindAccepted: wire.Accepted{Features: []string{wire.FeatureLane}}}
		path := stranger(t, frames(t, bodies, wire.KindRouted, then))
		_, err := client.Dial(within(t, 10*time.Second), "com.example.test", client.Options{Socket: path})
		if _, stranger := errors.AsType[*client.StrangerError](err); stranger || !errors.Is(err, wire.Malformed) {
			t.Errorf("%s: %v, want %s", name, err, wire.Malformed)
		}
	}
}

func TestWhoDoesNotAnswerIsNamedWhenTheTimeIsOver(t *testing.T) {
	path := stranger(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := client.Dial(ctx, "com.example.test", client.Options{Socket: path})
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, wire.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer from the broker at "+path+" in time") {
		t.Errorf("%v", err)
	}
}

func TestARefusalIsThatOfTheServiceWhateverItsCode(t *testing.T) {
	b := brokertest.Start(t)
	code := make(chan wire.Code, 1)
	b.Serve(services.Server{
		Endpoints: map[string]*services.Mux{endpoint: services.NewMux()},
		Accept:    func(context.Context, services.Opening) error { return wire.Errorf(<-code, "not so") },
	})
	for _, c := range []wire.Code{wire.Malformed, wire.Unsupported, wire.Refused} {
		code <- c
		_, err := client.Dial(within(t, 10*time.Second), endpoint, client.Options{Socket: b.Socket})
		if e, ok := errors.AsType[*wire.Error](err); !ok || e.Code != c || e.Origin != wire.Peer {
			t.Errorf("refused with %s: %+v, want it of the peer", c, err)
		}
		if _, stranger := errors.AsType[*client.StrangerError](err); stranger {
			t.Errorf("refused with %s, the broker is taken for none: %v", c, err)
		}
	}
}
