// Package console is what an operator sees of a broker: its answers, and its lists as tables. The commands share it.
package console

import (
	"context"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
)

// Ask calls a method of the broker that options name, on a session of its own. Failures are those of client.Dial and client.Call.
func Ask[Reply any](ctx context.Context, options client.Options, method string, request any) (reply Reply, err error) {
	s, err := client.Dial(ctx, broker.Endpoint, options)
	if err != nil {
		return reply, err
	}
	defer s.Close()
	return client.Call[Reply](ctx, s, method, request)
}

// Sessions returns the broker's sessions that the request is for, in the order they were opened.
func Sessions(ctx context.Context, options client.Options, request broker.SessionsRequest) ([]broker.Session, error) {
	s, err := client.Dial(ctx, broker.Endpoint, options)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return SessionsOn(ctx, s, request)
}

// SessionsOn is Sessions on a session with the broker.
func SessionsOn(ctx context.Context, s *client.Session, request broker.SessionsRequest) (all []broker.Session, err error) {
	parts, err := client.OpenStreaming[broker.Sessions, struct{}](ctx, s, broker.MethodSessions, request)
	if err != nil {
		return nil, err
	}
	defer parts.Close()
	for part, err := range parts.All() {
		if err != nil {
			return nil, err
		}
		all = append(all, part.Sessions...)
	}
	return all, nil
}
