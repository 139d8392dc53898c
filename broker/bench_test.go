package broker_test

import (
	"context"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
)

// benchmark has a broker and a server in this process, and returns the socket's path.
func benchmark(b *testing.B) string {
	at := b.TempDir() + "/b.sock"
	br, err := broker.New(broker.Config{Socket: at})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{}, 1)
	done := make(chan error, 2)
	go func() { done <- br.Serve(ctx) }()
	go func() {
		done <- services.Server{Socket: at, Endpoints: map[string]*services.Mux{echoEndpoint: echoMux()}, Ready: func() { ready <- struct{}{} }}.Serve(ctx)
	}()
	<-ready
	b.Cleanup(func() { cancel(); <-done; <-done })
	return at
}

func BenchmarkCall(b *testing.B) {
	s, err := client.Dial(b.Context(), echoEndpoint, client.Options{Socket: benchmark(b)})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Call[echoReply](b.Context(), s, "echo", echoRequest{"hello"}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpenCallClose(b *testing.B) {
	at := benchmark(b)
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		s, err := client.Dial(ctx, echoEndpoint, client.Options{Socket: at})
		if err == nil {
			_, err = client.Call[echoReply](ctx, s, "echo", echoRequest{"hello"})
			s.Close()
		}
		cancel()
		if err != nil {
			b.Fatal(err)
		}
	}
}
