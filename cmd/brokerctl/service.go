package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/wire"
)

func (c *command) serviceList(ctx context.Context) error {
	list, err := ask[broker.Services](ctx, c, broker.MethodServices, nil)
	if err != nil {
		return err
	}
	for i := range list.Services {
		empty(&list.Services[i].Endpoints)
	}
	if list.Skipped > 0 {
		c.note(skipped(list.Skipped))
	}
	return printList(c, "services", serviceListing, list.Services, member{"skipped", list.Skipped})
}

// serviceListing is how services are shown.
var serviceListing = cli.Listing[broker.ServiceInfo]{
	Thing: "service",
	Columns: []cli.Column[broker.ServiceInfo]{
		{Name: "NAME", Cell: func(s broker.ServiceInfo) string { return s.Name }},
		{Name: "STATE", Cell: stateCell, Tone: serviceTone},
		{Name: "PID", Cell: func(s broker.ServiceInfo) string { return number(s.PID) }, Order: console.By(func(s broker.ServiceInfo) int { return s.PID })},
		{Name: "SINCE", Cell: func(s broker.ServiceInfo) string { return cli.Age(since(s)) }, Order: console.By(func(s broker.ServiceInfo) wire.Time { return -since(s) })},
		{Name: "STARTS", Cell: func(s broker.ServiceInfo) string { return number(s.Starts) }, Order: console.By(func(s broker.ServiceInfo) int64 { return s.Starts })},
		{Name: "LAST EXIT", Cell: lastExit},
		{Name: "SESSIONS", Cell: func(s broker.ServiceInfo) string { return fmt.Sprint(s.Sessions) }, Order: console.By(func(s broker.ServiceInfo) int { return s.Sessions })},
		{Name: "ENDPOINTS", Cell: func(s broker.ServiceInfo) string { return strings.Join(s.Endpoints, ",") }},
	},
	Totals: func(all []broker.ServiceInfo) string {
		running, sessions := 0, 0
		for _, s := range all {
			sessions += s.Sessions
			if s.State == broker.ServiceRunning {
				running++
			}
		}
		return fmt.Sprintf("%d running, with %s", running, counted(sessions, "session"))
	},
}

func serviceTone(s broker.ServiceInfo) cli.Tone {
	switch s.State {
	case broker.ServiceRunning:
		return cli.Good
	case broker.ServiceStarting, broker.ServiceStopping, broker.ServiceWaiting:
		return cli.Busy
	case broker.ServiceSuspended:
		return cli.Bad
	}
	return cli.Plain
}

// stateCell is a service's state, until when it is in it if that is known, and what a reload has left to do.
func stateCell(s broker.ServiceInfo) string {
	cell := s.State
	if s.DueAt != 0 {
		cell += " until " + clock(s.DueAt)
	}
	if s.Pending != "" {
		cell += " (" + s.Pending + ")"
	}
	return cell
}

// since is when the service's instance was started, or when its last one ended.
func since(s broker.ServiceInfo) wire.Time {
	if s.StartedAt == 0 && s.Last != nil {
		return s.Last.At
	}
	return s.StartedAt
}

func lastExit(s broker.ServiceInfo) string {
	if s.Last == nil {
		return ""
	}
	return statusTold(*s.Last)
}

// number is a number for a cell, and nothing for 0.
func number[N int | int64](n N) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// clock is a time of these hours.
func clock(t wire.Time) string { return t.Time().Local().Format(time.TimeOnly) }

// ahead says how long it is until a time.
func ahead(t wire.Time) string {
	return "in " + max(0, time.Until(t.Time())).Round(time.Second).String()
}

func (c *command) serviceInspect(ctx context.Context, name string) error {
	d, err := ask[broker.ServiceDetails](ctx, c, broker.MethodService, broker.ServiceRequest{Name: name})
	if err != nil {
		return err
	}
	if c.json {
		return c.printService(d)
	}
	return c.printPairs(servicePairs(d))
}

// servicePairs are a service's details as lines, of which those without a value are left out.
func servicePairs(d broker.ServiceDetails) [][2]string {
	state := d.State
	if d.DueAt != 0 {
		state += fmt.Sprintf(" until %s (%s)", d.DueAt.Time().Local().Format(time.RFC3339), ahead(d.DueAt))
	}
	lines := [][2]string{
		{"name", d.Name}, {"file", d.File}, {"state", state}, {"pending", pending(d.Pending)},
		{"pid", number(d.PID)}, {"keeper", number(d.Keeper)}, {"instance", number(d.Instance)}, {"started", moment(d.StartedAt)}, {"cause", cause(d)},
		{"endpoints", strings.Join(d.Endpoints, ", ")}, {"sessions", fmt.Sprint(d.Sessions)}, {"waiting", counted(d.Waiting, "open")},
		{"starts", number(d.Starts)}, {"failures", number(d.Failures)},
	}
	if e := d.Last; e != nil {
		lines = append(lines, [2]string{"last exit", fmt.Sprintf("%s%s%s", ofInstance(e.Instance), statusTold(*e), ago(", ", e.At))})
		for _, l := range lastLines(d, e) {
			lines = append(lines, [2]string{"stderr", l})
		}
	}
	return append(lines, [][2]string{
		{"log", d.Log}, {"program", argv(d.Program)}, {"user", d.User}, {"group", d.Group}, {"run_at_load", yes(d.RunAtLoad)}, {"keep_alive", d.KeepAlive},
		{"throttle_interval", duration(d.Throttle)}, {"start_timeout", duration(d.Start)}, {"stop_timeout", duration(d.Stop)}, {"idle_exit", duration(d.Idle)}, {"hang_timeout", duration(d.Hang)},
		{"allow.open", strings.Join(d.Allow.Open, ", ")}, {"allow.register", strings.Join(d.Allow.Register, ", ")}, {"allow.admin", strings.Join(d.Allow.Admin, ", ")},
	}...)
}

// pending says what a reload has left to do.
func pending(p string) string {
	switch p {
	case broker.PendingChange:
		return "its service file has changed, which takes effect at its next start"
	case broker.PendingRemoval:
		return "its service file is gone, and so is the service when its instance has ended"
	}
	return p
}

// counted is a number of things, and nothing for none of them.
func counted(n int, thing string) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func ofInstance(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("instance %d: ", n)
}

// ago says how long ago a time was, behind a word; nothing of no time.
func ago(before string, t wire.Time) string {
	if t == 0 {
		return ""
	}
	return before + cli.Age(t) + " ago"
}

// argv is an argument vector that shows where its words begin and end.
func argv(words []string) string {
	var shown []string
	for _, w := range words {
		if w == "" || strings.ContainsAny(w, " \"'\t\n\\") {
			w = strconv.Quote(w)
		}
		shown = append(shown, w)
	}
	return strings.Join(shown, " ")
}

func yes(b bool) string {
	if b {
		return "true"
	}
	return ""
}

func duration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

// order returns a command that has the broker do something to a service, and says in one line what came of it. What is said is told when the command began.
func (c *command) order(method string, say func(d broker.ServiceDetails, begun time.Time) string) func(context.Context, string) error {
	return func(ctx context.Context, name string) error {
		begun := time.Now()
		d, err := ask[broker.ServiceDetails](ctx, c, method, broker.ServiceRequest{Name: name})
		if wire.CodeOf(err) == wire.DeadlineExceeded {
			return fmt.Errorf("%s %s: not within %v; 'brokerctl service why %s' says how it is: %w", method, name, c.timeout, name, err)
		}
		if err != nil {
			return err
		}
		if c.json {
			return c.printService(d)
		}
		_, err = fmt.Fprintln(c.out, say(d, begun))
		return err
	}
}

func started(d broker.ServiceDetails, begun time.Time) string {
	if d.State != broker.ServiceRunning { // something else was faster
		return fmt.Sprintf("%s is %s", d.Name, stateCell(d.ServiceInfo))
	}
	if d.Cause == nil || d.Cause.Kind != broker.CauseCommand || d.Cause.At.Time().Before(begun) {
		return fmt.Sprintf("%s is running already: %s", d.Name, instance(d.ServiceInfo))
	}
	return fmt.Sprintf("started %s: %s", d.Name, instance(d.ServiceInfo))
}

func restarted(d broker.ServiceDetails, _ time.Time) string {
	return fmt.Sprintf("restarted %s: %s", d.Name, instance(d.ServiceInfo))
}

func ready(d broker.ServiceDetails, _ time.Time) string {
	return fmt.Sprintf("%s is ready: %s", d.Name, instance(d.ServiceInfo))
}

func stopped(d broker.ServiceDetails, begun time.Time) string {
	var text string
	if e := d.Last; e == nil || e.At.Time().Before(begun) {
		text = d.Name + " was not running"
	} else {
		text = fmt.Sprintf("stopped %s: %s%s", d.Name, ofInstance(e.Instance), wire.Printable(e.Status, 256))
	}
	if d.State == broker.ServiceStarting || d.State == broker.ServiceRunning { // opens have waited for its end
		text += "; opens that waited have it started again"
	}
	return text
}

func reset(d broker.ServiceDetails, _ time.Time) string {
	return fmt.Sprintf("reset %s: its failures are forgotten, and it is %s", d.Name, stateCell(d.ServiceInfo))
}

// instance names the instance of a service that has one.
func instance(s broker.ServiceInfo) string {
	if s.Instance == 0 {
		return fmt.Sprintf("pid %d", s.PID)
	}
	return fmt.Sprintf("instance %d, pid %d", s.Instance, s.PID)
}

// skipped says that service files are skipped. The check has to read the same folders as the broker, which brokerctl does not know.
func skipped(files int) string {
	return counted(files, "service file") + " skipped: 'brokerd check', with the broker's --config-dir, --system or --user, says why"
}

func (c *command) serviceReload(ctx context.Context) error {
	r, err := ask[broker.Reloaded](ctx, c, broker.MethodReload, nil)
	if err != nil {
		return err
	}
	if c.json {
		empty(&r.Added, &r.Changed, &r.Removed)
		empty(&r.Problems)
		err = c.printJSON("reload", r)
	} else {
		err = c.printReloaded(ctx, r)
	}
	if err != nil {
		return err
	}
	networks := c.networksReloaded(ctx)
	if len(r.Problems) == 0 {
		return networks
	}
	files := map[string]bool{}
	for _, p := range r.Problems {
		files[p.File] = true
		problem := servicefile.Problem{File: p.File, Line: p.Line, Key: wire.Printable(p.Key, 256), Rule: wire.Printable(p.Rule, 1024)}
		fmt.Fprintln(c.errs, problem.Error())
	}
	if networks != nil {
		fmt.Fprintln(c.errs, wire.Printable(networks.Error(), wire.MaxText))
	}
	return errors.New(counted(len(files), "file") + " skipped: what was read before stays as it was")
}

// printReloaded says what a reload has changed, and of what runs that its change is pending.
func (c *command) printReloaded(ctx context.Context, r broker.Reloaded) error {
	if len(r.Added)+len(r.Changed)+len(r.Removed) == 0 {
		_, err := fmt.Fprintln(c.out, "nothing has changed")
		return err
	}
	list, err := ask[broker.Services](ctx, c, broker.MethodServices, nil)
	if err != nil {
		return err
	}
	notes := map[string]string{}
	for _, s := range list.Services {
		switch s.Pending {
		case broker.PendingChange:
			notes[s.Name] = " (pending: it takes effect at its next start)"
		case broker.PendingRemoval:
			notes[s.Name] = " (pending: it is gone when its instance has ended)"
		}
	}
	var text strings.Builder
	for _, part := range []struct {
		what  string
		names []string
	}{{"added", r.Added}, {"changed", r.Changed}, {"removed", r.Removed}} {
		for _, name := range part.names {
			fmt.Fprintf(&text, "%-7s  %s%s\n", part.what, name, notes[name])
		}
	}
	_, err = c.out.Write([]byte(text.String()))
	return err
}
