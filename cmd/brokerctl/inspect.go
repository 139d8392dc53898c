package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

// An inspected session is the session with what its instance sees of it, and the leases that hang on it.
type inspected struct {
	broker.Session
	*wire.Inspection
	Rates  *rates              `json:"rates,omitempty"`
	Leases []network.LeaseInfo `json:"leases,omitempty"`
}

func (c *command) sessionInspect(ctx context.Context, id string) error {
	d, err := ask[broker.Details](ctx, c, broker.MethodInspect, broker.SessionRequest{ID: id})
	if err != nil {
		return err
	}
	s := inspected{Session: d.Session, Inspection: d.Inspection}
	if s.Leases, err = c.leasesOf(ctx, d.Session); err != nil {
		fmt.Fprintf(c.errs, "brokerctl: the leases of the session are not known: %s\n", cli.Said(err.Error()))
	}
	if in := d.Inspection; in != nil {
		empty(&in.Calls)
		empty(&in.OpenStreams)
		now := meter{time.Now(), map[string][]int64{}}
		now.traffic(s.ID, wire.Traffic{Calls: in.CallsMade + in.CallsServed, Received: in.Received, Sent: in.Sent})
		s.Rates, c.before = now.trafficRates(c.before, s.ID), now
	}
	if c.json {
		return c.printJSON("session", s)
	}
	return c.printPairs(s.pairs())
}

// leasesOf returns the leases that a session holds, or has held and that something else keeps. Only a session with the network service has any, and none is asked
// for of one that does not run.
func (c *command) leasesOf(ctx context.Context, s broker.Session) (list []network.LeaseInfo, err error) {
	if s.Endpoint != network.Endpoint {
		return nil, nil
	}
	err = c.whileNetworkRuns(ctx, func(on *client.Session) (err error) {
		list, err = network.List(ctx, on, network.ListRequest{Session: s.ID})
		return err
	})
	return list, err
}

// pairs are the lines of an inspected session.
func (s inspected) pairs() [][2]string {
	lines := [][2]string{
		{"id", s.ID}, {"endpoint", s.Endpoint}, {"state", s.State}, {"title", s.Title},
		{"opened", moment(s.OpenedAt)}, {"closed", moment(s.ClosedAt)},
		{"client", party(s.Client)}, {"instance", party(s.Instance)}, {"end", console.End(s.End)},
	}
	if s.Inspection != nil {
		lines = append(lines, s.inspectionPairs()...)
	}
	for _, l := range s.Leases {
		lines = append(lines, [2]string{"lease", strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %s", l.ID, l.Network, strings.Join(l.Addresses, ","), l.Hostname)), " ") + ": " + l.State})
	}
	return lines
}

// inspectionPairs are what the instance sees of a session that is open.
func (s inspected) inspectionPairs() [][2]string {
	in := s.Inspection
	lines := [][2]string{
		{"calls", fmt.Sprintf("%d from the client (%d in flight), %d to it (%d in flight), %d late replies dropped", in.CallsServed, in.CallsServing, in.CallsMade, in.CallsWaiting, in.LateReplies)},
	}
	for _, call := range in.Calls {
		lines = append(lines, [2]string{"call", call.Method + direction(call.Served) + ", " + until(call.Deadline)})
	}
	if more := in.CallsServing + in.CallsWaiting - len(in.Calls); len(in.Calls) == wire.MaxInspected && more > 0 {
		lines = append(lines, [2]string{"call", fmt.Sprintf("and %d more", more)})
	}
	lines = append(lines, [2]string{"streams", fmt.Sprintf("%d open", in.Streams)})
	for _, st := range in.OpenStreams {
		lines = append(lines, [2]string{"stream", st.Method + direction(st.Served) + ", " + streamKind(st.Kind) + ", opened " + moment(st.OpenedAt)})
	}
	if more := in.Streams - len(in.OpenStreams); more > 0 {
		lines = append(lines, [2]string{"stream", fmt.Sprintf("and %d more", more)})
	}
	lines = append(lines, [2]string{"bytes", fmt.Sprintf("%d from the client, %d to it", in.Received, in.Sent)})
	if r := s.Rates; r != nil {
		lines = append(lines, [2]string{"rates", fmt.Sprintf("%.1f calls, %s from the client, %s to it, each second", r.Calls, size(r.Received), size(r.Sent))})
	}
	lines = append(lines, [][2]string{
		{"queues", fmt.Sprintf("from the client %s in the socket, %s unread on streams; to it %s waiting, %s in the socket", size(float64(in.SocketIn)), size(float64(in.Unread)), size(float64(in.Queued)), size(float64(in.SocketOut)))},
		{"channel", in.Channel},
		{"sockets", fmt.Sprintf("client %s, instance %d", known(in.PeerSocket), in.Socket)},
	}...)
	return append(append(lines, facts("client", in.PeerFacts)...), facts("instance", in.Facts)...)
}

// direction says who has made a call or opened a stream.
func direction(served bool) string {
	if served {
		return " by the client"
	}
	return " by the instance"
}

// until says how long a call may take.
func until(deadline wire.Time) string {
	if deadline == 0 {
		return "without a deadline"
	}
	left := time.Until(deadline.Time())
	if left <= 0 {
		return "its time is over"
	}
	return fmt.Sprintf("until %s (in %v)", clock(deadline), rounded(left))
}

// rounded is a duration without digits that nobody reads.
func rounded(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}

func streamKind(kind string) string {
	switch kind {
	case wire.StreamRaw:
		return "bytes"
	case wire.StreamCall:
		return "a streaming call"
	}
	return "not used yet"
}

func known(inode uint64) string {
	if inode == 0 {
		return "unknown"
	}
	return fmt.Sprint(inode)
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
