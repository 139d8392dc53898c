package main_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// typed is the name and the endpoint of a service that has methods of all kinds.
const typed = "com.example.typed"

// A note has a field of most types.
type note struct {
	Title   string         `msgpack:"t"`
	At      time.Time      `msgpack:"a,omitempty"`
	Urgency int8           `msgpack:"u,omitempty"`
	Tags    []string       `msgpack:"g,omitempty"`
	Body    []byte         `msgpack:"b,omitempty"`
	Counts  map[string]int `msgpack:"c,omitempty"`
	Reply   *note          `msgpack:"r,omitempty" json:"in_reply_to"`
	Log     *os.File       `msgpack:"l,omitempty"`
}

// typedMux has the methods of typed.
func typedMux() *services.Mux {
	var told atomic.Int64
	mux := services.NewMux()
	services.Handle(mux, "echo", func(_ context.Context, n note) (note, error) { return n, nil })
	services.Handle(mux, "fail", func(_ context.Context, code string) (any, error) {
		return nil, &wire.Error{Code: wire.Code(code), Text: "as you wish\x1b[2J", Holder: &wire.Holder{PID: 7}, Retry: time.Second}
	})
	services.Handle(mux, "hang", func(ctx context.Context, _ any) (any, error) { <-ctx.Done(); return nil, ctx.Err() })
	services.Handle(mux, "told", func(context.Context, struct{}) (int64, error) { return told.Load(), nil })
	services.HandleOneWay(mux, "tell", func(_ context.Context, by int64) error { told.Add(by); return nil })
	services.HandleStream(mux, "shout", func(_ context.Context, s *session.Stream) error {
		text, err := io.ReadAll(s)
		if err == nil {
			_, err = s.Write(bytes.ToUpper(text))
		}
		if err != nil {
			return err
		}
		return s.CloseWrite()
	})
	services.HandleStreaming(mux, "count", func(ctx context.Context, to int, out *services.Streaming[struct{}, note]) error {
		for i := range to {
			if err := out.Send(note{Title: fmt.Sprint(i)}); err != nil {
				return err
			}
		}
		if to < 0 {
			return wire.Errorf(wire.Exhausted, "cannot count to %d", to)
		}
		return nil
	})
	services.HandleStreaming(mux, "watch", func(ctx context.Context, first string, out *services.Streaming[struct{}, string]) error {
		if err := out.Send(first); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	services.HandleStreaming(mux, "upper", func(_ context.Context, _ any, notes *services.Streaming[note, note]) error {
		for n, err := range notes.All() {
			if err != nil {
				return err
			}
			n.Title = strings.ToUpper(n.Title)
			if err := notes.Send(n); err != nil {
				return err
			}
		}
		return nil
	})
	services.Doc(mux, "echo", "gives back what it is given")
	services.Doc(mux, "fail", "fails with a code\x1b[2J")
	services.Doc(mux, "tell", "adds to what told says")
	services.Doc(mux, "count", "sends so many notes")
	return mux
}

// serveTyped serves typed.
func serveTyped() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server := services.Server{Endpoints: map[string]*services.Mux{typed: typedMux()}}
	if err := server.Serve(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// typing starts a world in which the typed service is started on demand, as a process of its own.
func typing(t *testing.T) *world {
	return newWorld(t, map[string]string{"typed": strings.NewReplacer(echo, typed, `= "echo"`, `= "typed"`).Replace(working(t, ""))})
}

// foreign is the endpoint of a service that another library might serve: what it answers is the test's own.
const foreign = "com.example.foreign"

// A library is a session's handler that is no Mux.
type library func(m *session.Message) (any, error)

func (l library) Serve(_ context.Context, m *session.Message) (any, error) { return l(m) }

func (l library) ServeStream(_ context.Context, s *session.Stream) error {
	return wire.Errorf(wire.UnknownMethod, "no method %q", s.Method())
}

// serveForeign serves foreign by hand, as docs/protocol.md says, until the test ends.
func (w *world) serveForeign(answer library) {
	w.Helper()
	conn, _, err := socket.Connect(w.Context(), w.broker.Socket)
	w.must(err)
	f, err := wire.NewFrame(wire.KindRegister, 0, wire.Register{Service: foreign, Endpoints: []string{foreign}})
	w.must(err)
	w.must(socket.WriteFirst(conn, f))
	f, _, err = socket.ReadFrame(conn)
	w.must(err)
	if f.Kind != wire.KindAccepted {
		w.Fatalf("the registration is answered with %v", f.Kind)
	}
	control := session.NewControl(conn, session.Config{Endpoint: "control", Opener: true, Handler: library(func(m *session.Message) (any, error) {
		var o wire.HandOver
		if err := m.Decode(&o); err != nil {
			return nil, err
		}
		defer o.Socket.Close()
		client, err := socket.FromFile(o.Socket)
		if err != nil {
			return nil, err
		}
		f, err := wire.NewFrame(wire.KindAccepted, 0, wire.Accepted{Features: session.Offer()})
		if err == nil {
			err = socket.WriteFrame(client, f)
		}
		if err != nil {
			return nil, err
		}
		_, err = session.New(client, session.Config{ID: o.Session, Endpoint: o.Endpoint, Handler: answer, Send: o.Limits, Lane: true})
		return nil, err
	})})
	w.Cleanup(func() { control.Close(); control.Wait() })
}
