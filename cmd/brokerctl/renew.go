package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// networksReloaded has the network service, if it runs, read its networks anew, and says what came of it. At a reload the broker has it do so, too, but waits for no
// answer. A service of another program has no networks to read, and one that the caller may not reload is the broker's affair.
func (c *command) networksReloaded(ctx context.Context) error {
	d, err := ask[broker.ServiceDetails](ctx, c, broker.MethodService, broker.ServiceRequest{Name: network.Endpoint})
	if err != nil || d.State != broker.ServiceRunning {
		return nil
	}
	s, err := client.Dial(ctx, network.Endpoint, c.options())
	if err != nil {
		return fmt.Errorf("have %s read its networks again: %w", network.Endpoint, err)
	}
	defer s.Close()
	done, err := network.Reload(ctx, s)
	switch {
	case errors.Is(err, wire.UnknownMethod), errors.Is(err, wire.Unsupported), errors.Is(err, wire.NotPermitted):
		return nil
	case err != nil || c.json:
		return err
	}
	_, err = fmt.Fprintf(c.out, "reloaded %s, networks: %d\n", network.Endpoint, done.Networks)
	return err
}
