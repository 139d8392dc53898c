package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// monitor prints what happens, until ^C or until nobody reads it. Its time is that of its opening alone.
func (c *command) monitor(ctx context.Context) error {
	request := broker.MonitorRequest{Kinds: c.kinds}
	if err := c.parseSince(&request); err != nil {
		return err
	}
	if err := request.Validate(); err != nil {
		return usageError{"--filter: " + wire.AsError(err).Text}
	}
	s, err := c.dial(ctx, broker.Endpoint)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, stop := c.untilUnwanted(ctx)
	defer stop()
	events, err := client.OpenStreaming[broker.Event, struct{}](ctx, s, broker.MethodMonitor, request)
	if err != nil {
		return err
	}
	defer events.Close()
	for e, err := range events.All() {
		if err == nil {
			err = c.printEvent(e)
		} else if ctx.Err() != nil {
			return nil
		} else if code := wire.CodeOf(err); code == wire.Interrupted || code == wire.Terminating {
			err = wire.Errorf(code, "the broker has stopped, or is lost: what happened is not kept")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// parseSince takes --since: a time that has passed, or the number of an event.
func (c *command) parseSince(r *broker.MonitorRequest) error {
	if c.since == "" {
		return nil
	}
	if seq, err := strconv.ParseInt(c.since, 10, 64); err == nil && seq >= 0 {
		r.From = seq + 1
		return nil
	}
	ago, err := time.ParseDuration(c.since)
	if err != nil || ago <= 0 {
		return usageError{fmt.Sprintf("--since %q: want a time, as 90s or 5m, or the number of an event", c.since)}
	}
	r.Since = wire.At(time.Now().Add(-ago))
	return nil
}

// A monitored event is an event as JSON, on a line of its own.
type monitored struct {
	Version int `json:"version"`
	broker.Event
}

func (c *command) printEvent(e broker.Event) error {
	if c.json {
		b, err := json.Marshal(monitored{1, e})
		if err != nil {
			return err
		}
		_, err = c.out.Write(append(b, '\n'))
		return err
	}
	kind := fmt.Sprintf("%-*s", len(broker.EventInstanceUnregistered), wire.Printable(e.Kind, 64))
	if c.view.Color {
		kind = eventTone(e).Paint(kind)
	}
	_, err := fmt.Fprintf(c.out, "%s  %s  %s\n", eventTime(e.At.Time().Local(), time.Now()), kind, wire.Printable(told(e), 2048))
	return err
}

// eventTime is the time of an event, with its day if that is another one.
func eventTime(at, now time.Time) string {
	if at.Format(time.DateOnly) != now.Format(time.DateOnly) {
		return at.Format("2006-01-02 15:04:05.000")
	}
	return at.Format("15:04:05.000")
}

func eventTone(e broker.Event) cli.Tone {
	switch {
	case e.Kind == broker.EventDenied, e.Kind == broker.EventOverQuota, e.Kind == broker.EventDropped, e.State == broker.ServiceSuspended:
		return cli.Bad
	case e.End != nil && e.End.Code != wire.Invalid && e.End.Code != wire.Terminating, e.Exit != nil && e.Exit.Status != "exit status 0":
		return cli.Busy
	}
	return cli.Plain
}

// told says an event in one line.
func told(e broker.Event) string {
	switch e.Kind {
	case broker.EventSessionOpened:
		return sessionTold(e) + ", served by " + eventInstance(e)
	case broker.EventSessionClosed:
		if e.End == nil {
			return sessionTold(e)
		}
		return fmt.Sprintf("%s: %s by %s: %s", sessionTold(e), e.End.Code, e.End.Origin, e.End.Text)
	case broker.EventServiceState:
		text := fmt.Sprintf("%s is %s", e.Service, e.State)
		if e.DueAt != 0 {
			text += " until " + clock(e.DueAt)
		}
		return text + ", was " + e.Was
	case broker.EventInstanceStarted:
		d := broker.ServiceDetails{Cause: e.Cause}
		if e.Cause != nil && (e.Cause.Kind == broker.CauseLoad || e.Cause.Kind == broker.CauseKeepAlive) {
			return eventInstance(e) + ": " + e.Cause.Kind
		}
		return eventInstance(e) + ": " + cause(d)
	case broker.EventInstanceRegistered:
		return eventInstance(e)
	case broker.EventInstanceUnregistered:
		return eventInstance(e)
	case broker.EventInstanceEnded:
		return instanceEnded(e)
	case broker.EventDenied, broker.EventOverQuota:
		return refusal(e)
	case broker.EventReload:
		if r := e.Reload; r != nil {
			return fmt.Sprintf("%d services added, %d changed, %d removed; %s", r.Added, r.Changed, r.Removed, problems(r.Problems))
		}
	case broker.EventDropped:
		return fmt.Sprintf("%d events are missing: there was no time for them", e.Dropped)
	}
	return strings.TrimSpace(e.Service + " " + e.Text) // of a later version
}

func sessionTold(e broker.Event) string {
	text := session.ShortID(e.Session) + " of " + e.Endpoint
	if e.Client != nil {
		text += fmt.Sprintf(" by %s, uid %d", cli.Who(*e.Client), e.Client.UID)
	}
	if e.Title != "" {
		text += fmt.Sprintf(" (%s)", e.Title)
	}
	return text
}

// eventInstance names the instance of an event.
func eventInstance(e broker.Event) string {
	switch {
	case e.Instance == 0 && e.PID == 0:
		return e.Service
	case e.Instance == 0:
		return fmt.Sprintf("%s (pid %d)", e.Service, e.PID)
	case e.PID == 0:
		return fmt.Sprintf("%s (instance %d)", e.Service, e.Instance)
	}
	return fmt.Sprintf("%s (instance %d, pid %d)", e.Service, e.Instance, e.PID)
}

func instanceEnded(e broker.Event) string {
	text := eventInstance(e)
	if e.Exit == nil {
		return text
	}
	if e.Exit.Why != "" {
		return text + " could not be started: " + e.Exit.Why
	}
	return text + ": " + e.Exit.Status
}

func refusal(e broker.Event) string {
	text := e.Text
	if e.Client != nil {
		text = fmt.Sprintf("%s, uid %d: %s", cli.Who(*e.Client), e.Client.UID, e.Text)
	}
	if e.More > 0 {
		text += fmt.Sprintf(" (and %d more before)", e.More)
	}
	return text
}

func problems(n int) string {
	if n == 0 {
		return "no problem"
	}
	return counted(n, "problem")
}
