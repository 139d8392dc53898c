package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

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
	case e.End != nil && e.End.Code != wire.Invalid && e.End.Code != wire.Terminating, e.Exit != nil && (e.Exit.Status != "exit status 0" || e.Exit.Unregistered):
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
		return sessionTold(e) + ": " + console.End(e.End)
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
	switch {
	case e.Exit.Why == "":
		return text + ": " + statusTold(*e.Exit)
	case e.Exit.Status == "not started":
		return text + " could not be started: " + e.Exit.Why
	}
	return text + ": " + e.Exit.Status + ", by the broker, as " + e.Exit.Why
}

// statusTold says with which status an instance has ended.
func statusTold(e broker.Exit) string {
	if e.Unregistered {
		return e.Status + ", before it registered"
	}
	return e.Status
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
