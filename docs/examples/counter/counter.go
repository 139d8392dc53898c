// Package counter is an example of a service: it counts for its clients, and tells those who watch.
package counter

import (
	"context"
	"fmt"
	"sync"

	"github.com/fairlead-dev/fairlead/client"
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
	mu      sync.Mutex
	totals  map[string]int64
	changed chan struct{} // closed at the next change of any; nil while nobody waits for one
}

// Mux returns the methods of the endpoint.
func (c *Counters) Mux() *services.Mux {
	mux := services.NewMux()
	services.Handle(mux, "add", c.add)
	services.Doc(mux, "add", "adds to a counter")
	services.Handle(mux, "get", c.get)
	services.HandleStreaming(mux, "follow", c.follow)
	return mux
}

func (c *Counters) add(_ context.Context, r Add) (Total, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.totals == nil {
		c.totals = map[string]int64{}
	}
	c.totals[r.Counter] += r.By
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
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

// follow sends where a counter stands, and again each time that it has changed, until the client has enough. Who receives slowly is not told of every
// total, and always of the last.
func (c *Counters) follow(ctx context.Context, name string, totals *services.Streaming[struct{}, Total]) error {
	for first, told := true, (Total{}); ; first = false {
		total, changed := c.wait(name)
		if first || total != told {
			if err := totals.Send(total); err != nil {
				return err
			}
			told = total
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wait returns where a counter stands, and what is closed when any counter has changed since.
func (c *Counters) wait(name string) (Total, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return Total{c.totals[name]}, c.changed
}

// Follow prints a counter's totals until one is reached.
func Follow(ctx context.Context, on client.Caller, name string, until int64) error {
	totals, err := client.OpenStreaming[Total, struct{}](ctx, on, "follow", name)
	if err != nil {
		return err
	}
	defer totals.Close() // the handler's context ends
	for total, err := range totals.All() {
		if err != nil {
			return err
		}
		fmt.Println(name, total.Total)
		if total.Total >= until {
			break
		}
	}
	return nil
}
