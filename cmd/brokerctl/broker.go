package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/wire"
)

// ask calls a method of the broker's endpoint.
func ask[Reply any](ctx context.Context, c *command, method string, request any) (Reply, error) {
	return console.Ask[Reply](ctx, c.options(), method, request)
}

func (c *command) status(ctx context.Context) error {
	s, err := ask[broker.Status](ctx, c, broker.MethodStatus, nil)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON("status", s)
	}
	_, err = fmt.Fprintf(c.out, `broker     %s, pid %d, uid %d, up %s
socket     %s
services   %d, instances %d
sessions   %d open, %d closed since the start
denied     %d, over quota %d
`, s.Version, s.PID, s.UID, time.Since(s.StartedAt.Time()).Round(time.Second), s.Socket, s.Services, s.Instances, s.Open, s.Closed, s.Denied, s.OverQuota)
	return err
}

func (c *command) sessionList(ctx context.Context) error {
	if err := checkCode(c.end); err != nil {
		return err
	}
	request := broker.SessionsRequest{State: c.state, Endpoint: c.endpoint, PID: c.pid, UID: c.uid, End: wire.Code(c.end), Title: c.title}
	all, err := console.Sessions(ctx, c.options(), request)
	if err != nil {
		return err
	}
	return printList(c, "sessions", console.SessionListing, all)
}

// An inspected session is the session with what its instance sees of it.
type inspected struct {
	broker.Session
	*wire.Inspection
}

func (c *command) sessionInspect(ctx context.Context, id string) error {
	d, err := ask[broker.Details](ctx, c, broker.MethodInspect, broker.SessionRequest{ID: id})
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON("session", inspected{d.Session, d.Inspection})
	}
	s := d.Session
	lines := [][2]string{
		{"id", s.ID}, {"endpoint", s.Endpoint}, {"state", s.State}, {"title", s.Title},
		{"opened", moment(s.OpenedAt)}, {"closed", moment(s.ClosedAt)},
		{"client", party(s.Client)}, {"instance", party(s.Instance)}, {"end", console.End(s)},
	}
	if in := d.Inspection; in != nil {
		lines = append(lines, [][2]string{
			{"calls", fmt.Sprintf("%d from the client (%d in flight), %d to it (%d in flight), %d late replies dropped", in.CallsServed, in.CallsServing, in.CallsMade, in.CallsWaiting, in.LateReplies)},
			{"streams", fmt.Sprintf("%d open", in.Streams)},
			{"bytes", fmt.Sprintf("%d from the client, %d to it", in.Received, in.Sent)},
			{"channel", in.Channel},
			{"sockets", fmt.Sprintf("client %d, instance %d", in.PeerSocket, in.Socket)},
		}...)
		lines = append(lines, facts("client", in.PeerFacts)...)
		lines = append(lines, facts("instance", in.Facts)...)
	}
	return c.printPairs(lines)
}

func facts(side string, of map[string]string) (lines [][2]string) {
	for _, k := range slices.Sorted(maps.Keys(of)) {
		lines = append(lines, [2]string{"fact", fmt.Sprintf("%s=%s (of the %s)", k, of[k], side)})
	}
	return lines
}

func party(p wire.Process) string { return fmt.Sprintf("%s, uid %d, gid %d", cli.Who(p), p.UID, p.GID) }

func moment(t wire.Time) string {
	if t == 0 {
		return ""
	}
	return fmt.Sprintf("%s (%s ago)", t.Time().Local().Format(time.RFC3339), cli.Age(t))
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
