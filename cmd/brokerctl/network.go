package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/services/network"
)

func (c *command) leaseList(ctx context.Context) error {
	s, err := c.dial(ctx, network.Endpoint)
	if err != nil {
		return err
	}
	defer s.Close()
	list, err := network.List(ctx, s, network.ListRequest{Network: c.network})
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON("leases", list)
	}
	return console.PrintLeases(c.out, list)
}

func (c *command) networkList(ctx context.Context) error {
	s, err := c.dial(ctx, network.Endpoint)
	if err != nil {
		return err
	}
	defer s.Close()
	list, err := network.Networks(ctx, s)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON("networks", list)
	}
	t := cli.NewTable("NAME", "PREFIXES", "GATEWAYS", "MTU", "TOTAL", "HELD", "ORPHANED", "FREE")
	for _, n := range list {
		t.Row(n.Name, strings.Join(n.Prefixes, ","), strings.Join(n.Gateways, ","), fmt.Sprint(n.MTU), fmt.Sprint(n.Total), fmt.Sprint(n.Held), fmt.Sprint(n.Orphaned), fmt.Sprint(n.Free))
	}
	return t.Print(c.out)
}
