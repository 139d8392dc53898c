package server_test

import (
	"testing"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/network/server"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/schema"
)

// description returns what the service says of itself.
func description(t *testing.T) *schema.Description {
	t.Helper()
	srv, err := server.New(server.Config{Networks: networks(t, "default=10.9.0.0/24"), StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	c, _ := brokertest.Pair(t, network.Endpoint, srv.Mux(), nil)
	raw, err := client.Call[wire.Raw](t.Context(), c, schema.Describe, nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := schema.Parse(raw)
	if err != nil || len(d.Methods) < 7 {
		t.Fatalf("%+v, %v", d, err)
	}
	return d
}

func TestEachMethodSaysWhatItDoes(t *testing.T) {
	for _, m := range description(t).Methods {
		if m.Doc == "" {
			t.Errorf("%s says nothing of itself", m.Name)
		}
	}
}
