// Package services is what a service author imports: methods on a Mux, endpoints on a Server.
package services

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/schema"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A Mux serves the methods of one endpoint by their names. It is a session.Handler, so a client can give one to its sessions too.
// Methods are added before it serves; adding one twice panics, and so does a name that begins with schema.Reserved. Besides them it serves schema.Describe.
type Mux struct {
	mu      sync.RWMutex
	methods map[string]method
	streams map[string]stream
}

// A method serves calls, or one-way messages.
type method struct {
	kind      Kind
	serve     func(context.Context, *session.Message) (any, error)
	signature signature
}

// A stream is a method that serves raw streams, or streaming calls.
type stream struct {
	kind      Kind
	serve     func(context.Context, *session.Stream) error
	signature signature
}

// A Streaming is one side of a streaming call; see session.Streaming.
type Streaming[In, Out any] = session.Streaming[In, Out]

// NewMux returns a Mux without methods.
func NewMux() *Mux {
	mux := &Mux{methods: map[string]method{}, streams: map[string]stream{}}
	mux.methods[schema.Describe] = method{kind: KindCall, serve: mux.describe}
	return mux
}

// Handle adds a method that takes a Request and returns a Reply. Handlers run beside each other, on goroutines and threads that they leave as they found them, as
// session.Handler says; the context ends with the caller's deadline, cancel or session. An error that is a *wire.Error, or a wire.Code, reaches the caller with its code; any other one does as
// wire.Internal. A request that does not decode is answered with wire.Malformed and never reaches the handler. If Request has a method
// Validate() error on its pointer, it has been called.
func Handle[Request, Reply any](mux *Mux, name string, handler func(context.Context, Request) (Reply, error)) {
	mux.add(name, method{KindCall, func(ctx context.Context, m *session.Message) (any, error) {
		var request Request
		if err := m.Decode(&request); err != nil {
			return nil, err
		}
		return handler(ctx, request)
	}, callOf[Request, Reply]()})
}

// HandleOneWay adds a method that takes one-way messages. The next message of that session is taken up only when the handler has returned.
// Its error is logged at debug level and goes nowhere else.
func HandleOneWay[Message any](mux *Mux, name string, handler func(context.Context, Message) error) {
	mux.add(name, method{KindOneWay, func(ctx context.Context, m *session.Message) (any, error) {
		var message Message
		if err := m.Decode(&message); err != nil {
			return nil, err
		}
		return nil, handler(ctx, message)
	}, callOf[Message, any]()})
}

// HandleStream adds a method that serves a raw stream, which is closed when the handler returns. An error is what the client then reads.
func HandleStream(mux *Mux, name string, handler func(context.Context, *session.Stream) error) {
	mux.addStream(name, stream{KindStream, handler, signature{}})
}

// HandleStreaming adds a method that serves streaming calls: it takes a Request, and then receives values of In and sends values of Out, as many as it
// likes, until it returns. Its context ends with the caller's deadline, cancel or session. What it sends ends with nil as its result; an error is what the
// client receives behind it, unless CloseSend was called before. A request or a value that does not decode is wire.Malformed, as with Handle; if the
// type has a method Validate() error on its pointer, it has been called.
func HandleStreaming[Request, In, Out any](mux *Mux, name string, handler func(context.Context, Request, *Streaming[In, Out]) error) {
	mux.addStream(name, stream{KindStreaming, func(ctx context.Context, s *session.Stream) error {
		values := session.NewStreaming[In, Out](s)
		var request Request
		if err := s.Decode(&request); err != nil {
			return err
		}
		if err := handler(ctx, request, values); err != nil {
			return err
		}
		return values.CloseSend()
	}, streamingOf[Request, In, Out]()})
}

func (mux *Mux) addStream(name string, s stream) {
	mux.mu.Lock()
	defer mux.mu.Unlock()
	_, twice := mux.streams[name]
	check("stream method", name, twice)
	mux.streams[name] = s
}

func (mux *Mux) add(name string, m method) {
	mux.mu.Lock()
	defer mux.mu.Unlock()
	_, twice := mux.methods[name]
	check("method", name, twice)
	mux.methods[name] = m
}

// check panics for a method that cannot be added.
func check(what, name string, twice bool) {
	switch {
	case twice || name == "" || len(name) > wire.MaxMethod:
		panic(fmt.Sprintf("services: %s %q is added twice, or its name is not of 1 to %d bytes", what, name, wire.MaxMethod))
	case strings.HasPrefix(name, schema.Reserved):
		panic(fmt.Sprintf("services: %s %q: names that begin with %s are the library's own", what, name, schema.Reserved))
	}
}

// Serve serves one message; it is for the session to call.
func (mux *Mux) Serve(ctx context.Context, m *session.Message) (any, error) {
	kind := kindOf(m)
	mux.mu.RLock()
	found := mux.methods[m.Method]
	mux.mu.RUnlock()
	if found.kind != kind {
		return nil, mux.unknown(m.Method, kind)
	}
	return found.serve(ctx, m)
}

// ServeStream serves one stream; it is for the session to call.
func (mux *Mux) ServeStream(ctx context.Context, s *session.Stream) error {
	method, ok := mux.stream(s.Method())
	if !ok {
		return mux.unknown(s.Method(), KindStream)
	}
	return method.serve(ctx, s)
}

// unknown is the answer to what came as a kind of which there is no method with this name: there is none at all, or one of another kind.
func (mux *Mux) unknown(name string, came Kind) error {
	mux.mu.RLock()
	is := cmp.Or(mux.methods[name].kind, mux.streams[name].kind)
	mux.mu.RUnlock()
	name = wire.Printable(name, wire.MaxMethod)
	if is == "" {
		return wire.Errorf(wire.UnknownMethod, "no method %q", name)
	}
	return wire.Errorf(wire.UnknownMethod, "%q is %s, and came as %s", name, is.phrase(), came.phrase())
}

func (mux *Mux) stream(name string) (stream, bool) {
	mux.mu.RLock()
	defer mux.mu.RUnlock()
	s, ok := mux.streams[name]
	return s, ok
}

// FromContext returns the session that a handler's context belongs to: who calls, and a way to call back.
func FromContext(ctx context.Context) *session.Session { return session.FromContext(ctx) }
