package services_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

func TestAMethodThatIsUsedAsAnotherKindSaysWhichItIs(t *testing.T) {
	refused := make(chan string, 1) // what a one-way message came to, which its client is not told
	mux := services.NewMux()
	services.Handle(mux, "add", func(context.Context, any) (any, error) { return nil, nil })
	services.HandleOneWay(mux, "tell", func(context.Context, any) error { return nil })
	services.HandleStream(mux, "bytes", func(context.Context, *session.Stream) error { return nil })
	services.HandleStreaming(mux, "count", func(context.Context, any, *services.Streaming[any, any]) error { return nil })
	b := brokertest.Start(t)
	b.Serve(services.Server{Endpoints: map[string]*services.Mux{endpoint: mux}, Called: func(c services.Call) {
		if c.Kind == services.KindOneWay {
			refused <- c.Err
		}
	}})
	s := b.Dial(endpoint, client.Options{})
	call := func(method string) error { return s.Call(within(t, 10*time.Second), method, nil, nil) }
	stream := func(method string) error {
		_, err := openStreaming[any, any](t, s, method, nil).Receive()
		return err
	}
	for _, test := range []struct {
		use    func(string) error
		method string
		want   string
	}{
		{call, "tell", `"tell" is a one-way message, and came as a call`},
		{call, "bytes", `"bytes" is a stream, and came as a call`},
		{call, "count", `"count" is a streaming call, and came as a call`},
		{call, "none", `no method "none"`},
		{stream, "add", `"add" is a call, and came as a stream`},
		{stream, "tell", `"tell" is a one-way message, and came as a stream`},
		{stream, "none", `no method "none"`},
	} {
		if err := test.use(test.method); !errors.Is(err, wire.UnknownMethod) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %s: %s", err, wire.UnknownMethod, test.want)
		}
	}
	for method, want := range map[string]string{
		"add":   `"add" is a call, and came as a one-way message`,
		"count": `"count" is a streaming call, and came as a one-way message`,
	} {
		if err := s.Send(within(t, 10*time.Second), method, nil); err != nil {
			t.Fatal(err)
		}
		if got := wait(t, "the message is refused", refused); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
