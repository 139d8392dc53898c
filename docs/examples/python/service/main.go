// Command service is what the examples of this folder's README call: it serves com.example.echo until it is told to stop.
package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/fairlead-dev/fairlead/services"
)

const endpoint = "com.example.echo"

type text struct {
	Text string `msgpack:"text"`
}

type file struct {
	File *os.File `msgpack:"file"`
}

type number struct {
	N int `msgpack:"n"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	mux := services.NewMux()
	services.Handle(mux, "echo", func(_ context.Context, r text) (text, error) { return r, nil })
	services.Handle(mux, "cat", cat)
	services.Handle(mux, "open", open)
	services.HandleOneWay(mux, "add", func(_ context.Context, n number) error { return nil })
	server := services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}, Logger: slog.Default()}
	if err := server.Serve(ctx); err != nil {
		slog.Error("cannot serve", "endpoint", endpoint, "err", err)
		os.Exit(1)
	}
}

// cat returns what is in the file that the client passes.
func cat(_ context.Context, r file) (text, error) {
	if r.File == nil {
		return text{}, nil
	}
	defer r.File.Close()
	content, err := io.ReadAll(r.File)
	return text{string(content)}, err
}

// open returns a file that has the client's text.
func open(_ context.Context, r text) (file, error) {
	f, err := os.CreateTemp("", "text")
	if err != nil {
		return file{}, err
	}
	_, written := f.WriteString(r.Text)
	_, rewound := f.Seek(0, io.SeekStart)
	if err := errors.Join(os.Remove(f.Name()), written, rewound); err != nil {
		f.Close()
		return file{}, err
	}
	return file{f}, nil // the session closes it when it has left
}
