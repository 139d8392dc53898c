package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/wire"
)

func (c *command) serviceWhy(ctx context.Context, name string) error {
	d, err := ask[broker.ServiceDetails](ctx, c, broker.MethodService, broker.ServiceRequest{Name: name})
	if err != nil {
		return err
	}
	if c.json {
		return c.printService(d)
	}
	_, err = c.out.Write([]byte(why(d)))
	return err
}

// why says in whole sentences, each a line, what caused a service's last start, and why it is not running if it is not.
func why(d broker.ServiceDetails) string {
	var b strings.Builder
	say := func(line string) {
		if line != "" {
			b.WriteString(wire.Printable(line, 4096) + "\n")
		}
	}
	ended := d.Last
	if d.State == broker.ServiceRunning {
		say(beginning(d, nameAndInstance(d)))
		if d.Cause == nil || d.Cause.Kind != broker.CauseKeepAlive {
			ended = nil // the instance before has nothing to do with it
		}
	} else {
		say(standing(d))
		if d.Cause != nil {
			say(beginning(d, subject(d)))
		}
	}
	if ended != nil {
		say(ending(d, ended))
		for _, l := range lastLines(d, ended) {
			say("  " + l)
		}
	}
	if d.Pending != "" {
		say(sentence(pending(d.Pending)))
	}
	return b.String()
}

// mostLine is how many bytes of a line are shown where it is one of several: a stack in one line buries the others.
const mostLine = 300

// lastLines are the last that an instance wrote on stderr. A long one is cut, and where it is whole is said behind them.
func lastLines(d broker.ServiceDetails, e *broker.Exit) (lines []string) {
	cut := false
	for _, l := range e.Stderr {
		if short := wire.Cut(l, mostLine); len(short) < len(l) {
			l, cut = fmt.Sprintf("%s… (%d bytes)", short, len(l)), true
		}
		lines = append(lines, l)
	}
	if cut && d.Log != "" {
		lines = append(lines, "Whole lines: 'brokerctl service logs "+d.Name+"'")
	}
	return lines
}

// sentence has the first letter of an ASCII text large, and a full stop behind it.
func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] + "." }

func nameAndInstance(d broker.ServiceDetails) string {
	if d.Instance == 0 {
		return fmt.Sprintf("%s (pid %d)", d.Name, d.PID)
	}
	return fmt.Sprintf("%s (instance %d)", d.Name, d.Instance)
}

// subject names the last instance of a service that is not running.
func subject(d broker.ServiceDetails) string {
	switch {
	case d.Instance != 0:
		return fmt.Sprintf("Instance %d", d.Instance)
	case d.Last != nil && d.Last.Instance != 0 && d.State != broker.ServiceStarting:
		return fmt.Sprintf("Instance %d", d.Last.Instance)
	}
	return "It"
}

// beginning says what caused the last start.
func beginning(d broker.ServiceDetails, who string) string {
	reason := cause(d)
	switch {
	case d.Name == broker.Endpoint:
		return d.Name + " is the broker itself."
	case reason == "" && d.Instance == 0:
		return who + " has registered on its own: the broker has not started it."
	case reason == "":
		return fmt.Sprintf("%s was started%s, and what caused that is not recorded.", who, ago(" ", d.StartedAt))
	}
	at := d.StartedAt
	if at == 0 {
		at = d.Cause.At
	}
	return fmt.Sprintf("%s was started%s: %s.", who, ago(" ", at), reason)
}

// cause says what the last start was for; nothing where that is not known.
func cause(d broker.ServiceDetails) string {
	if d.Cause == nil {
		return ""
	}
	switch c := d.Cause; c.Kind {
	case broker.CauseOpen:
		return fmt.Sprintf("client %s opened %s", process(c.Client), c.Endpoint)
	case broker.CauseLoad:
		if !d.RunAtLoad {
			return "the broker has read its service file, and keep_alive is " + d.KeepAlive
		}
		return "the broker has read its service file, and run_at_load is true"
	case broker.CauseKeepAlive:
		if e := d.Last; e != nil && e.Instance != 0 && e.Instance != d.Instance && d.Instance != 0 {
			return fmt.Sprintf("keep_alive is %s, and instance %d had ended: %s", d.KeepAlive, e.Instance, statusTold(*e))
		}
		return fmt.Sprintf("keep_alive is %s, and the instance before had ended", d.KeepAlive)
	case broker.CauseCommand:
		return "a command of process " + process(c.Client)
	}
	return d.Cause.Kind
}

// process names who did something.
func process(p *wire.Process) string {
	switch {
	case p == nil:
		return "unknown"
	case p.Program == "":
		return fmt.Sprintf("%d (uid %d)", p.PID, p.UID)
	}
	return fmt.Sprintf("%d (%s, uid %d)", p.PID, p.Program, p.UID)
}

// standing says why a service is not running, and what comes next.
func standing(d broker.ServiceDetails) string {
	next := "the next open of " + either(d.Endpoints) + " starts it"
	if d.DueAt != 0 {
		next += fmt.Sprintf(", not before %s (%s), as it has failed: 'brokerctl service start %s' waits for nothing", clock(d.DueAt), ahead(d.DueAt), d.Name)
	}
	switch d.State {
	case broker.ServiceStopped:
		switch {
		case len(d.Program) == 0:
			return d.Name + " is stopped: its service file has no program for the broker to start, and no process has registered it."
		case d.Stopped != nil:
			text := fmt.Sprintf("%s was stopped %s ago by a command of process %s", d.Name, cli.Age(d.Stopped.At), process(d.Stopped.Client))
			if d.KeepAlive != servicefile.Never.String() {
				text += ", and is not kept alive until something starts it"
			}
			return text + ": " + next + "."
		case d.Last == nil:
			return fmt.Sprintf("%s is stopped, as nothing has wanted it yet: %s.", d.Name, next)
		}
		return fmt.Sprintf("%s is stopped: %s.", d.Name, next)
	case broker.ServiceStarting:
		return fmt.Sprintf("%s is starting: it has not registered yet, for which it has %v.%s", d.Name, d.Start, waiting(d))
	case broker.ServiceStopping:
		return fmt.Sprintf("%s is stopping, for which it has %v.%s", d.Name, d.Stop, waiting(d))
	case broker.ServiceWaiting:
		then := "when it is started again"
		if d.KeepAlive == servicefile.Never.String() {
			then += " if an open still waits"
		}
		return fmt.Sprintf("%s is waiting until %s (%s), %s: that is %s.%s", d.Name, clock(d.DueAt), ahead(d.DueAt), then, failures(d), waiting(d))
	case broker.ServiceSuspended:
		return fmt.Sprintf("%s is suspended until %s (%s), as it failed too often: 'brokerctl service reset %s' lifts that.", d.Name, clock(d.DueAt), ahead(d.DueAt), d.Name)
	}
	return fmt.Sprintf("%s is %s.", d.Name, d.State)
}

// failures says what a pause is for.
func failures(d broker.ServiceDetails) string {
	if d.Failures == 0 {
		return "its throttle_interval, " + d.Throttle.String() + " after the last start"
	}
	return "the pause after " + counted(d.Failures, "quick failure") + " in a row"
}

func waiting(d broker.ServiceDetails) string {
	switch d.Waiting {
	case 0:
		return ""
	case 1:
		return " 1 open waits for it."
	}
	return fmt.Sprintf(" %d opens wait for it.", d.Waiting)
}

// ending says how an instance has ended.
func ending(d broker.ServiceDetails, e *broker.Exit) string {
	who := "The last instance"
	if e.Instance != 0 {
		who = fmt.Sprintf("Instance %d", e.Instance)
	}
	at := ""
	if e.At != 0 {
		at = " " + cli.Age(e.At) + " ago"
	}
	if e.Why != "" && e.Status == "not started" {
		return fmt.Sprintf("%s could not be started%s: %s.", who, at, e.Why)
	}
	text := fmt.Sprintf("%s ended%s: %s", who, at, e.Status)
	if e.Unregistered {
		text = fmt.Sprintf("%s ended before it registered%s: %s", who, at, e.Status)
	}
	if e.Why != "" {
		text += ", by the broker, as " + e.Why
	}
	if len(e.Stderr) > 0 {
		return text + "; the last it wrote on stderr:"
	}
	if d.Log != "" && (e.Status != "exit status 0" || e.Unregistered) {
		return text + "; 'brokerctl service logs " + d.Name + "' may say more."
	}
	return text + "."
}
