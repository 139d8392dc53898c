// Package counter is an example of a service: it counts for its clients, and tells those who watch.
package counter

import (
	"context"
	"sync"

	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

// Endpoint is where the counters are.
const Endpoint = "com.example.counter"

// An Add adds to a counter.
type Add struct {
	Counter string `msgpack:"c"`
	By      int64  `msgpack:"b"`
}

// Validate is called before the handler is.
func (a *Add) Validate() error {
	if a.Counter == "" || len(a.Counter) > 64 {
		return wire.Errorf(wire.Malformed, "counter name of %d bytes, want 1 to 64", len(a.Counter))
	}
	return nil
}

// A Total is where a counter stands.
type Total struct {
	Total int64 `msgpack:"t"`
}

// Counters count. The zero Counters is ready.
type Counters struct {
	mu     sync.Mutex
	totals map[string]int64
}

// Mux returns the methods of the endpoint.
func (c *Counters) Mux() *services.Mux {
	mux := services.NewMux()
	services.Handle(mux, "add", c.add)
	services.Handle(mux, "get", c.get)
	return mux
}

func (c *Counters) add(_ context.Context, r Add) (Total, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.totals == nil {
		c.totals = map[string]int64{}
	}
	c.totals[r.Counter] += r.By
	return Total{c.totals[r.Counter]}, nil
}

func (c *Counters) get(_ context.Context, name string) (Total, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	total, ok := c.totals[name]
	if !ok {
		return Total{}, wire.Errorf(wire.NotFound, "no counter %q", wire.Printable(name, 64))
	}
	return Total{total}, nil
}
