package brokertest_test

import (
	"context"
	"io"
	"os"
	"testing"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
)

type file struct{ File *os.File }

func TestADescriptorPassesThroughAPairBothWays(t *testing.T) {
	mux := services.NewMux()
	services.Handle(mux, "back", func(_ context.Context, f file) (file, error) { return f, nil })
	s, _ := brokertest.Pair(t, "com.example.files", mux, nil)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	reply, err := client.Call[file](t.Context(), s, "back", file{w})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(reply.File, "hi")
	reply.File.Close()
	if got, err := io.ReadAll(r); string(got) != "hi" || err != nil { // it ends: no other copy is left
		t.Errorf("%q, %v", got, err)
	}
}
