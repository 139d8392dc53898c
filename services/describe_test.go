package services_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker/brokertest"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/schema"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// described is a Mux of methods of every kind.
func described() *services.Mux {
	mux := services.NewMux()
	services.Handle(mux, "both", func(context.Context, *text) (*text, error) { return nil, nil })
	services.HandleStream(mux, "both", func(context.Context, *session.Stream) error { return nil })
	services.HandleOneWay(mux, "add", func(context.Context, []time.Duration) error { return nil })
	services.HandleStreaming(mux, "zip", func(context.Context, map[string]int8, *services.Streaming[struct{}, text]) error { return nil })
	services.Doc(mux, "both", "does one thing or another")
	services.Doc(mux, "zip", strings.Repeat("é", schema.MaxDoc))
	return mux
}

func methodsOf(t *testing.T, on client.Caller) *schema.Description {
	t.Helper()
	raw, err := client.Call[wire.Raw](within(t, 10*time.Second), on, schema.Describe, nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := schema.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestAServiceDescribesItsMethods(t *testing.T) {
	c, s := brokertest.Pair(t, endpoint, described(), services.NewMux())
	d := methodsOf(t, c)
	var got []string
	for _, m := range d.Methods {
		got = append(got, fmt.Sprintf("%s: %s %s %s %s %s %d", m.Name, m.Kind, d.Expr(m.Request), d.Expr(m.Reply), d.Expr(m.In), d.Expr(m.Out), len(m.Doc)))
	}
	want := `add: one-way [int64] any any any 0
both: call text text? any any 25
both: stream any any any any 25
zip: streaming call {string: int8} any {} text 512`
	if strings.Join(got, "\n") != want || d.Endpoint != endpoint {
		t.Errorf("%s:\n%s", d.Endpoint, strings.Join(got, "\n"))
	}
	if both := d.Find("both"); len(both) != 2 || both[0].Kind != "call" {
		t.Errorf("%+v", both)
	}
	if d := methodsOf(t, s); len(d.Methods) != 0 { // a client that serves says so, too
		t.Errorf("%+v", d.Methods)
	}
}

func TestTheNameOfTheDescriptionIsNobodyElses(t *testing.T) {
	mux := described()
	for what, add := range map[string]func(){
		"a call": func() {
			services.Handle(mux, schema.Describe, func(context.Context, any) (any, error) { return nil, nil })
		},
		"another of ours": func() {
			services.HandleOneWay(mux, schema.Reserved+"x", func(context.Context, any) error { return nil })
		},
		"a stream": func() {
			services.HandleStream(mux, schema.Describe, func(context.Context, *session.Stream) error { return nil })
		},
		"a text for ours":  func() { services.Doc(mux, schema.Describe, "x") },
		"a text for none":  func() { services.Doc(mux, "none", "x") },
		"a text too early": func() { services.Doc(services.NewMux(), "both", "x") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: taken", what)
				}
			}()
			add()
		}()
	}
	c, _ := brokertest.Pair(t, endpoint, mux, nil)
	if _, err := openStreaming[any, any](t, c, schema.Describe, nil).Receive(); !errors.Is(err, wire.UnknownMethod) || !strings.Contains(err.Error(), "is a call") {
		t.Errorf("%v", err)
	}
}

func TestAMuxOfVeryManyMethodsDescribesAsManyAsOneMay(t *testing.T) {
	mux := services.NewMux()
	for i := range schema.MaxMethods + 1 {
		name := fmt.Sprintf("%0*d", wire.MaxMethod, i)
		services.HandleOneWay(mux, name, func(context.Context, any) error { return nil })
		services.Doc(mux, name, strings.Repeat("x", 2*schema.MaxDoc))
	}
	c, _ := brokertest.Pair(t, endpoint, mux, nil)
	if d := methodsOf(t, c); len(d.Methods) != schema.MaxMethods || d.Methods[0].Name != strings.Repeat("0", wire.MaxMethod) {
		t.Errorf("%d methods", len(d.Methods))
	}
}

// The built-in endpoints say of each method what it does.
func TestTheBrokerDescribesItself(t *testing.T) {
	b := brokertest.Start(t)
	d := methodsOf(t, b.Dial("fairlead.broker", client.Options{}))
	if len(d.Methods) < 13 {
		t.Errorf("%d methods", len(d.Methods))
	}
	for _, m := range d.Methods {
		if m.Doc == "" {
			t.Errorf("%s says nothing of itself", m.Name)
		}
	}
}
