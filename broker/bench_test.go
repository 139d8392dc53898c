package broker_test

import (
	"context"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
)

// benchmark has a broker and a server in this process, and returns the socket's path.
func benchmark(b *testing.B) string {
	br := brokertest.Start(b)
	br.Serve(echoServer())
	return br.Socket
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
