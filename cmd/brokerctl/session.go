package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/wire"
)

func (c *command) sessionList(ctx context.Context) error {
	if err := cmp.Or(checkState(c.state), checkCode(c.end)); err != nil {
		return err
	}
	request := broker.SessionsRequest{
		State: c.state, Endpoint: c.endpoint, PID: c.pid, UID: c.uid, End: wire.Code(c.end), Title: c.title, Traffic: c.watch > 0,
	}
	all, err := console.Sessions(ctx, c.options(), request)
	if err != nil {
		return err
	}
	if len(all) == 0 && c.endpoint != "" {
		if err := c.checkEndpoint(ctx); err != nil {
			return err
		}
	}
	return printList(c, "sessions", c.sessionListing(), c.rated(all))
}

// checkState checks --state.
func checkState(state string) error {
	states := []string{broker.SessionOpen, broker.SessionClosed, "all"}
	if slices.Contains(states, state) {
		return nil
	}
	return usageError{fmt.Sprintf("--state %q: want open, closed or all%s", state, nearest.Question(state, states))}
}

// checkEndpoint says beside a list without sessions if no service has the endpoint that they were to have, and which may be meant.
func (c *command) checkEndpoint(ctx context.Context) error {
	list, err := ask[broker.Services](ctx, c, broker.MethodServices, nil)
	if err != nil {
		return err
	}
	var endpoints []string
	for _, s := range list.Services {
		endpoints = append(endpoints, s.Endpoints...)
	}
	if !slices.Contains(endpoints, c.endpoint) {
		c.note("no service has the endpoint " + c.endpoint + nearest.Question(c.endpoint, endpoints))
	}
	return nil
}

// A ratedSession is a session with what it carries, which is known from the second round of --watch on.
type ratedSession struct {
	broker.Session
	Rates *rates `json:"rates,omitempty"`
}

// rated adds to sessions what they carry.
func (c *command) rated(all []broker.Session) []ratedSession {
	list := make([]ratedSession, len(all))
	now := meter{time.Now(), map[string][]int64{}}
	for i, s := range all {
		list[i].Session = s
		if s.Traffic != nil {
			now.traffic(s.ID, *s.Traffic)
			list[i].Rates = now.trafficRates(c.before, s.ID)
		}
	}
	c.before = now
	return list
}

// sessionListing is how sessions are shown: with --watch also what they carry.
func (c *command) sessionListing() cli.Listing[ratedSession] {
	l := cli.Lift(console.SessionListing, func(s ratedSession) broker.Session { return s.Session })
	if c.watch == 0 {
		return l
	}
	at := slices.IndexFunc(l.Columns, func(c cli.Column[ratedSession]) bool { return c.Name == "INSTANCE" }) + 1
	l.Columns = slices.Insert(l.Columns, at,
		rateColumn("CALLS/S", func(r rates) float64 { return r.Calls }, func(n float64) string { return fmt.Sprintf("%.1f", n) }),
		rateColumn("IN/S", func(r rates) float64 { return r.Received }, size),
		rateColumn("OUT/S", func(r rates) float64 { return r.Sent }, size))
	return l
}

// rateColumn is a column of a rate.
func rateColumn(name string, of func(rates) float64, show func(float64) string) cli.Column[ratedSession] {
	return cli.Column[ratedSession]{
		Name: name,
		Cell: func(s ratedSession) string {
			if s.Rates == nil {
				return ""
			}
			return show(of(*s.Rates))
		},
		Order: func(a, b ratedSession) int {
			return cmp.Compare(of(*cmp.Or(a.Rates, &rates{Calls: -1, Received: -1, Sent: -1})), of(*cmp.Or(b.Rates, &rates{Calls: -1, Received: -1, Sent: -1})))
		},
	}
}

func (c *command) sessionClose(ctx context.Context, id string) error {
	s, err := ask[broker.Session](ctx, c, broker.MethodClose, broker.SessionRequest{ID: id, Text: c.reason})
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON("session", s)
	}
	_, err = fmt.Fprintf(c.out, "closed %s of %s\n", s.ID, s.Endpoint)
	return err
}
