// Command counterd serves counters until it is told to stop.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/fairlead-dev/fairlead/docs/examples/counter"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire/session"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var counters counter.Counters
	server := services.Server{
		Endpoints: map[string]*services.Mux{counter.Endpoint: counters.Mux()},
		Logger:    slog.Default(),
		Called:    called,
	}
	if err := server.Serve(ctx); err != nil {
		slog.Error("cannot serve", "endpoint", counter.Endpoint, "err", err)
		os.Exit(1)
	}
}

// called logs each call, at debug level if it went well.
func called(c services.Call) {
	level := slog.LevelDebug
	if c.Code != "" {
		level = slog.LevelInfo
	}
	slog.Log(context.Background(), level, string(c.Kind), "session", session.ShortID(c.Session), "endpoint", c.Endpoint, "service", counter.Endpoint,
		"method", c.Method, "took", c.Took, "peer", c.Peer.PID, "uid", c.Peer.UID, "code", c.Code, "err", c.Err)
}
