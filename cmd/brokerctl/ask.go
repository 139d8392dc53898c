package main

import (
	"context"
	"slices"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/services/network"
)

// options say how sessions are opened.
func (c *command) options() client.Options {
	return client.Options{Socket: c.socket, Title: "brokerctl", NoWait: true}
}

// on does something on a session with an endpoint, which it opens and closes.
func (c *command) on(ctx context.Context, endpoint string, do func(*client.Session) error) error {
	s, err := client.Dial(ctx, endpoint, c.options())
	if err != nil {
		return err
	}
	defer s.Close()
	return do(s)
}

// ask calls a method of the broker's endpoint.
func ask[Reply any](ctx context.Context, c *command, method string, request any) (Reply, error) {
	return console.Ask[Reply](ctx, c.options(), method, request)
}

// onNetwork returns a command that does something on a session with the network service.
func (c *command) onNetwork(do func(context.Context, *client.Session) error) func(context.Context) error {
	return func(ctx context.Context) error {
		return c.on(ctx, network.Endpoint, func(s *client.Session) error { return do(ctx, s) })
	}
}

// onNetworkOne is onNetwork for a command with an operand.
func (c *command) onNetworkOne(do func(context.Context, *client.Session, string) error) func(context.Context, string) error {
	return func(ctx context.Context, operand string) error {
		return c.on(ctx, network.Endpoint, func(s *client.Session) error { return do(ctx, s, operand) })
	}
}

// whileNetworkRuns does something on a session with the network service if it runs: none is started for this.
func (c *command) whileNetworkRuns(ctx context.Context, do func(*client.Session) error) error {
	list, err := ask[broker.Services](ctx, c, broker.MethodServices, nil)
	if err != nil || !slices.ContainsFunc(list.Services, servesNetwork) {
		return err
	}
	return c.on(ctx, network.Endpoint, do)
}

// servesNetwork reports whether a service is the network service, and runs.
func servesNetwork(s broker.ServiceInfo) bool {
	return s.State == broker.ServiceRunning && slices.Contains(s.Endpoints, network.Endpoint)
}
