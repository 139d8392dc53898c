package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

func (c *command) leaseList(ctx context.Context, s *client.Session) error {
	list, err := network.List(ctx, s, network.ListRequest{Network: c.network})
	if err != nil {
		return err
	}
	return printList(c, "leases", console.LeaseListing, list)
}

func (c *command) networkList(ctx context.Context, s *client.Session) error {
	list, err := network.Networks(ctx, s)
	if err != nil {
		return err
	}
	return printList(c, "networks", networkListing, list)
}

func (c *command) networkInspect(ctx context.Context, s *client.Session, name string) error {
	list, err := network.Networks(ctx, s)
	if err != nil {
		return err
	}
	var names []string
	for _, n := range list {
		if n.Name == name {
			return c.printNetwork(n)
		}
		names = append(names, n.Name)
	}
	if meant := nearest.Question(name, names); meant != "" {
		return wire.Errorf(wire.NotFound, "no network %s%s", name, meant)
	}
	return wire.Errorf(wire.NotFound, "no network %s: 'brokerctl network list' shows which there are", name)
}

func (c *command) printNetwork(n network.NetworkInfo) error {
	if c.json {
		return c.printJSON("network", n)
	}
	quarantine := ""
	if n.Quarantine > 0 {
		quarantine = n.Quarantine.String()
	}
	lines := [][2]string{
		{"name", n.Name}, {"prefixes", strings.Join(n.Prefixes, ", ")}, {"gateways", strings.Join(n.Gateways, ", ")}, {"mtu", fmt.Sprint(n.MTU)},
		{"addresses", fmt.Sprintf("%d: %d held, %d reserved, %d cooling, %d orphaned, %d free", n.Total, n.Held, n.Reserved, n.Cooling, n.Orphaned, n.Free)},
		{"leases", fmt.Sprintf("%d of at most %d", n.Leases, n.MaxLeases)}, {"quarantine", quarantine}, {"mac prefix", n.MACPrefix},
		{"dns", strings.Join(n.DNS, ", ")}, {"search", strings.Join(n.Search, ", ")},
	}
	for _, r := range n.Routes {
		lines = append(lines, [2]string{"route", r.To + " via " + r.Via})
	}
	return c.printPairs(lines)
}

// networkReload has the network service read its networks anew.
func (c *command) networkReload(ctx context.Context, s *client.Session) error {
	done, err := network.Reload(ctx, s)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON("reload", done)
	}
	_, err = fmt.Fprintf(c.out, "reloaded, networks: %d\n", done.Networks)
	return err
}

// networkListing is how networks are shown.
var networkListing = cli.Listing[network.NetworkInfo]{
	Thing: "network",
	Columns: []cli.Column[network.NetworkInfo]{
		{Name: "NAME", Cell: func(n network.NetworkInfo) string { return n.Name }},
		{Name: "PREFIXES", Cell: func(n network.NetworkInfo) string { return strings.Join(n.Prefixes, ",") }},
		{Name: "GATEWAYS", Cell: func(n network.NetworkInfo) string { return strings.Join(n.Gateways, ",") }},
		counts("MTU", func(n network.NetworkInfo) uint64 { return uint64(n.MTU) }),
		counts("TOTAL", func(n network.NetworkInfo) uint64 { return n.Total }),
		counts("HELD", func(n network.NetworkInfo) uint64 { return n.Held }),
		counts("RESERVED", func(n network.NetworkInfo) uint64 { return n.Reserved }),
		counts("COOLING", func(n network.NetworkInfo) uint64 { return n.Cooling }),
		counts("ORPHANED", func(n network.NetworkInfo) uint64 { return n.Orphaned }),
		counts("FREE", func(n network.NetworkInfo) uint64 { return n.Free }),
	},
	Totals: func(all []network.NetworkInfo) string {
		var held, cooling, orphaned, free uint64
		for _, n := range all {
			held, cooling, orphaned, free = held+n.Held, cooling+n.Cooling, orphaned+n.Orphaned, free+n.Free
		}
		return fmt.Sprintf("%d addresses held, %d cooling, %d orphaned, %d free", held, cooling, orphaned, free)
	},
}

// counts is a column of numbers.
func counts(name string, of func(network.NetworkInfo) uint64) cli.Column[network.NetworkInfo] {
	return cli.Column[network.NetworkInfo]{Name: name, Cell: func(n network.NetworkInfo) string { return fmt.Sprint(of(n)) }, Order: console.By(of)}
}
