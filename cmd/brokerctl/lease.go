package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// findLease returns the lease that a text names: by its id, an address, or a hostname, which may look like an id.
func (c *command) findLease(ctx context.Context, s *client.Session, text string) (network.LeaseInfo, error) {
	r, err := network.ByName(c.network, text)
	if err != nil {
		return network.LeaseInfo{}, err
	}
	info, err := network.Inspect(ctx, s, r)
	if r.Lease != "" && errors.Is(err, wire.NotFound) {
		if named, byName := network.Inspect(ctx, s, network.InspectRequest{Network: c.network, Hostname: text}); byName == nil {
			return named, nil
		}
	}
	if r.Hostname != "" && errors.Is(err, wire.NotFound) {
		none := *wire.AsError(err)
		none.Text += nearest.Question(text, hostnames(ctx, s, c.network))
		err = &none
	}
	return info, err
}

// hostnames are those of the leases on a network, or of all; none where they cannot be had.
func hostnames(ctx context.Context, s *client.Session, on string) (names []string) {
	list, _ := network.List(ctx, s, network.ListRequest{Network: on})
	for _, l := range list {
		names = append(append(names, l.Aliases...), l.Hostname)
	}
	return names
}

func (c *command) leaseInspect(ctx context.Context, s *client.Session, text string) error {
	l, err := c.findLease(ctx, s, text)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON("lease", l)
	}
	mac := l.MAC
	if l.MACGiven {
		mac += " (asked for)"
	}
	lines := [][2]string{
		{"id", l.ID}, {"network", l.Network}, {"state", l.State}, {"addresses", strings.Join(l.Addresses, ", ")}, {"gateways", strings.Join(l.Gateways, ", ")},
		{"hostname", l.Hostname}, {"aliases", strings.Join(l.Aliases, ", ")}, {"mac", mac}, {"mtu", fmt.Sprint(l.MTU)}, {"allocated", moment(l.AllocatedAt)},
		{"session", l.Session}, {"holder", fmt.Sprintf("process %d, uid %d", l.Holder.PID, l.Holder.UID)},
	}
	for _, k := range hangsOn(l) {
		lines = append(lines, [2]string{"hangs on", k})
	}
	return c.printPairs(lines)
}

// hangsOn says what keeps a lease from being over.
func hangsOn(l network.LeaseInfo) (list []string) {
	if l.State == network.StateHeld {
		list = append(list, fmt.Sprintf("session %s of process %d", session.ShortID(l.Session), l.Holder.PID))
	}
	for _, w := range l.Witnesses {
		switch {
		case w.PID == 0:
			list = append(list, fmt.Sprintf("network namespace %d", w.Namespace))
		case w.PID == l.Holder.PID && l.State != network.StateHeld:
			list = append(list, fmt.Sprintf("process %d, which held it", w.PID))
		default:
			list = append(list, fmt.Sprintf("process %d", w.PID))
		}
	}
	return list
}

// leaseRelease releases a lease that no session holds.
func (c *command) leaseRelease(ctx context.Context, s *client.Session, text string) error {
	l, err := c.findLease(ctx, s, text)
	if err != nil {
		return err
	}
	if l.State == network.StateHeld {
		return wire.Errorf(wire.NotPermitted, "lease %s is held by session %s of process %d, and only that releases it: 'brokerctl session close %s' ends the session, and the lease once nothing else keeps it",
			l.ID, session.ShortID(l.Session), l.Holder.PID, session.ShortID(l.Session))
	}
	if err := network.Release(ctx, s, l.ID); err != nil {
		return err
	}
	was := hangsOn(l)
	l.State, l.Witnesses = network.StateOver, nil
	if c.json {
		return c.printJSON("lease", l)
	}
	text = fmt.Sprintf("released %s of %s on network %s", l.ID, strings.Join(l.Addresses, " and "), l.Network)
	if len(was) > 0 {
		text += ", which was kept for " + strings.Join(was, " and ")
	}
	_, err = fmt.Fprintln(c.out, wire.Printable(text, 2048))
	return err
}

// leaseWatch prints the leases and then what happens to them, until ^C or until nobody reads it. Its time is that of its opening alone.
func (c *command) leaseWatch(ctx context.Context, s *client.Session) error {
	ctx, stop := c.untilUnwanted(ctx)
	defer stop()
	for change, err := range network.Watch(ctx, s, network.WatchRequest{Network: c.network}) {
		if err == nil {
			err = c.printChange(change)
		} else if ctx.Err() != nil {
			return nil
		} else if wire.CodeOf(err) == wire.Interrupted {
			err = fmt.Errorf("the network service is lost, and 'lease watch' shows the next one's: %w", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// A watched change is a change as JSON, on a line of its own.
type watchedChange struct {
	Version int `json:"version"`
	network.Change
}

func (c *command) printChange(change network.Change) error {
	if c.json {
		return c.printLine(watchedChange{1, change})
	}
	return c.printTold(change.At, change.Kind, len(network.ChangeAllocated), changeTone(change), changeTold(change))
}

func changeTone(change network.Change) cli.Tone {
	switch change.Kind {
	case network.ChangeOrphaned, network.ChangeDropped:
		return cli.Bad
	case network.ChangeDying:
		return cli.Busy
	}
	return cli.Plain
}

// whyTold says why a lease is dying or over.
var whyTold = map[string]string{
	network.WhySession:   "its session is over",
	network.WhyReleased:  "its session gave it back",
	network.WhyWithdrawn: "its session has never seen it",
	network.WhyWitness:   "the last that it hung on is gone",
	network.WhyOperator:  "it was released by name",
}

// changeTold says a change in one line.
func changeTold(change network.Change) string {
	switch l := change.Lease; {
	case change.Kind == network.ChangeSynced:
		return "that is all, and what follows are changes"
	case change.Kind == network.ChangeDropped:
		return fmt.Sprintf("%d changes are missing, as there was no time for them: the list begins anew", change.Dropped)
	case l == nil: // of a later version
		return ""
	default:
		text := strings.TrimRight(fmt.Sprintf("%s  %s  %s  %s", l.ID, l.Network, strings.Join(l.Addresses, ","), l.Hostname), " ")
		switch change.Kind {
		case network.ChangePresent:
			text += ": " + l.State
		case network.ChangeCooling:
			text += ": until " + clock(change.Until)
		case network.ChangeAllocated, network.ChangeReclaimed:
			text += fmt.Sprintf(": process %d, uid %d", l.Holder.PID, l.Holder.UID)
		}
		if why := whyTold[change.Why]; why != "" {
			text += ": " + why
		}
		return text
	}
}
