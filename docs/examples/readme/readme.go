// Package readme holds the README's examples as they are compiled: a test compares them.
package readme

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/runner"
)

// An Echo is a text, there and back.
type Echo struct {
	Text string `msgpack:"text"`
}

// Serve serves the endpoint com.example.echo.
func Serve(ctx context.Context) error {
	mux := services.NewMux()
	services.Handle(mux, "echo", func(ctx context.Context, req Echo) (Echo, error) {
		return Echo{Text: req.Text}, nil
	})
	server := services.Server{Endpoints: map[string]*services.Mux{"com.example.echo": mux}, Logger: slog.Default()}
	return server.Serve(ctx) // waits for a broker, serves until ctx ends, then drains
}

// Call calls it.
func Call(ctx context.Context) error {
	session, err := client.Dial(ctx, "com.example.echo", client.Options{Title: "readme", Logger: slog.Default()})
	if err != nil {
		return err // errors.Is(err, wire.UnknownEndpoint), … ; it waits for a broker as long as ctx lets it, and tells the Logger
	}
	defer session.Close()
	reply, err := client.Call[Echo](ctx, session, "echo", Echo{Text: "hi"})
	if err != nil {
		return err
	}
	fmt.Println(reply.Text)
	return nil // who holds a session for longer waits for <-session.Done(): session.End() says who ended it and why
}

// Run runs a command that holds a lease.
func Run(ctx context.Context, cmd *exec.Cmd) error {
	session, err := client.Dial(ctx, network.Endpoint, client.Options{Title: "my runtime", Logger: slog.Default()})
	if err != nil {
		return err
	}
	defer session.Close()
	lease, err := network.Allocate(ctx, session, network.Request{Network: "default", Hostname: "web"})
	if err != nil {
		return err
	}
	return runner.Run(ctx, cmd, lease) // ends cmd and all it started when the lease's network is lost
}
