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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var counters counter.Counters
	server := services.Server{
		Endpoints: map[string]*services.Mux{counter.Endpoint: counters.Mux()},
		Logger:    slog.Default(),
	}
	if err := server.Serve(ctx); err != nil {
		slog.Error("cannot serve", "endpoint", counter.Endpoint, "err", err)
		os.Exit(1)
	}
}
