package services

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A Kind is what a client wanted of a method.
type Kind string

// The kinds. A stream without a method that serves it is a KindStream, whatever its client wanted.
const (
	KindCall      Kind = "call"
	KindOneWay    Kind = "one-way"
	KindStream    Kind = "stream" // a raw one
	KindStreaming Kind = "streaming call"
)

// kindOf returns what the client wanted of a method by a message.
func kindOf(m *session.Message) Kind {
	if m.OneWay {
		return KindOneWay
	}
	return KindCall
}

// phrase is the kind within a sentence.
func (k Kind) phrase() string {
	if k == KindOneWay {
		return "a one-way message"
	}
	return "a " + string(k)
}

// A Call is what Server.Called is told of one call, one-way message, raw stream or streaming call. A session itself refuses some that a Call is never made
// of: those that come when it is being ended, or whose time was over or which were canceled before they began, and streams over its limit.
type Call struct {
	Session  string // the session's id
	Endpoint string
	Method   string // as the client wrote it, escaped as wire.Printable does
	Kind     Kind
	Peer     wire.Process  // the client, as the kernel told
	Took     time.Duration // until the handler had returned
	Code     wire.Code     // of the handler's error, as the client is told; empty: none. That of a panic is wire.Internal
	Err      string        // the error for people, cut and escaped as wire.Printable does; empty: none
}

// panicked is the error of a handler that has not returned.
var panicked error = wire.Errorf(wire.Internal, "the handler panicked")

// A teller serves a Mux and tells of each call.
type teller struct {
	mux  *Mux
	told func(Call)
	log  *slog.Logger
}

func (t teller) Serve(ctx context.Context, m *session.Message) (reply any, err error) {
	err = panicked // unless it returns
	defer t.tell(ctx, kindOf(m), m.Method, time.Now(), &err)
	return t.mux.Serve(ctx, m)
}

func (t teller) ServeStream(ctx context.Context, s *session.Stream) (err error) {
	kind := KindStream
	if method, ok := t.mux.stream(s.Method()); ok {
		kind = method.kind
	}
	err = panicked
	defer t.tell(ctx, kind, s.Method(), time.Now(), &err)
	return t.mux.ServeStream(ctx, s)
}

// tell tells of a call whose handler has returned, or is panicking.
func (t teller) tell(ctx context.Context, kind Kind, method string, began time.Time, err *error) {
	took := time.Since(began)
	s := session.FromContext(ctx)
	c := Call{Session: s.ID(), Endpoint: s.Endpoint(), Method: wire.Printable(method, wire.MaxMethod), Kind: kind, Peer: s.Peer(), Took: took}
	c.Code, c.Err = describe(*err)
	defer func() { // a handler's panic passes: it is the session's
		if r := recover(); r != nil {
			t.log.Error("the hook for calls panicked", "session", session.ShortID(c.Session), "endpoint", c.Endpoint, "err", r, "stack", string(debug.Stack()))
		}
	}()
	t.told(c)
}

// describe returns what is told of an error, also of one whose own methods panic.
func describe(err error) (code wire.Code, text string) {
	if err == nil {
		return "", ""
	}
	defer func() {
		if r := recover(); r != nil {
			code, text = wire.Internal, "an error whose text panicked"
		}
	}()
	return wire.AsError(err).Bounded().Code, wire.Printable(err.Error(), wire.MaxText)
}
