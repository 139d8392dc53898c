// Package client opens sessions with named endpoints.
package client

import (
	"context"
	"log/slog"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A Session is an open session; see the package wire/session.
type Session = session.Session

// A Streaming is one side of a streaming call; see session.Streaming.
type Streaming[In, Out any] = session.Streaming[In, Out]

// Options say how to open a session. The zero value is useful.
type Options struct {
	// Socket is the path of the broker's socket; empty: FAIRLEAD_SOCKET, or the default of this user.
	Socket string
	// Title is what people read of this session in lists: at most wire.MaxTitle bytes.
	Title string
	// NoWait has Dial fail at once where no broker is, or where it is to try again later; otherwise it waits until its context ends.
	NoWait bool
	// Handler takes what the service sends: its calls, one-way messages and streams, as a *services.Mux does. Nil: it serves none.
	Handler session.Handler
	// Limits are what this side accepts of the service; zero: wire.DefaultLimits.
	Limits wire.Limits
	// Interrupted is told of each session that a Connection has lost, once, with its end. It must not block. Nil: nobody is.
	Interrupted func(wire.End)
	// Logger is told of a peer that breaks the protocol, and once in each open that has waited for 1 s between its attempts, or is about to, of what it waits for: a broker, and at which
	// socket, or a limit. Nil: nobody is.
	Logger *slog.Logger
}

// Call calls a method and returns its decoded reply; see Session.Call.
func Call[Reply any](ctx context.Context, on Caller, method string, request any) (Reply, error) {
	var reply Reply
	err := on.Call(ctx, method, request, &reply)
	return reply, err
}

// OpenStreaming opens a streaming call: it receives values of In, and sends values of Out. It lasts until it is closed, which is the caller's to do, or until
// ctx ends; see Session.OpenStreaming.
func OpenStreaming[In, Out any](ctx context.Context, on Caller, method string, request any) (*Streaming[In, Out], error) {
	st, err := on.OpenStreaming(ctx, method, request)
	if err != nil {
		return nil, err
	}
	return session.NewStreaming[In, Out](st), nil
}
