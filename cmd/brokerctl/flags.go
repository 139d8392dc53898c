package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/internal/nearest"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// flags returns the flags of all commands, which set what the command is to do; system and uid take effect by parse.
func (c *command) flags() (flags *pflag.FlagSet, system *bool, uid *uint32) {
	flags = pflag.NewFlagSet("brokerctl", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&c.socket, "socket", "", "`PATH` of the broker's socket (default: $FAIRLEAD_SOCKET, else that of this user)")
	system = flags.Bool("system", false, "ask the system's broker, at "+socket.SystemPath)
	flags.BoolVar(&c.json, "json", false, "print JSON, for programs")
	flags.DurationVar(&c.timeout, "timeout", ordinaryPatience, "how long the whole command may take; service start, stop, restart and wait, and shutdown have "+longPatience.String()+", benches "+benchPatience.String()+", and streams in call any time")
	flags.BoolVarP(&c.wantsHelp, "help", "h", false, "print what a command does, and its flags")

	flags.BoolVar(&c.view.NoLegend, "no-legend", false, "no header and no totals")
	flags.StringSliceVar(&c.view.Columns, "columns", nil, "only these columns, in this order: `NAME,...`")
	flags.StringVar(&c.view.Sort, "sort", "", "sort by this `COLUMN`")
	flags.BoolVar(&c.view.Reverse, "reverse", false, "the last first")
	flags.IntVar(&c.view.Limit, "limit", 0, "at most `N` of them, and a line that says how many there are; 0: all")
	flags.DurationVar(&c.watch, "watch", 0, "print it again and again until ^C, with a pause of `TIME`; on a terminal in place")
	flags.Lookup("watch").NoOptDefVal = "2s"

	flags.StringVar(&c.state, "state", "open", "which sessions: open, closed or all")
	flags.StringVar(&c.endpoint, "endpoint", "", "only sessions of this endpoint")
	flags.IntVar(&c.pid, "pid", 0, "only sessions whose client or instance has this pid")
	uid = flags.Uint32("uid", 0, "only sessions whose client has this uid")
	flags.StringVar(&c.end, "end", "", "only sessions that ended with this `CODE`, as 'brokerctl explain' lists them")
	flags.StringVar(&c.title, "title", "", "only sessions with this text in their title")
	flags.StringVar(&c.network, "network", "", "the `NAME` of a network: only its leases; of bench lease, one to lease from")
	flags.StringVar(&c.reason, "reason", "", "what both ends are told, as `TEXT`")
	flags.BoolVarP(&c.follow, "follow", "f", false, "go on with what is written, until ^C")
	flags.IntVarP(&c.lines, "lines", "n", 100, "how many lines of the end, 1 to 10000")
	flags.StringSliceVar(&c.accept, "accept", nil, "an error of this `CODE` is a success, and printed as JSON; may be repeated")
	flags.StringVar(&c.since, "since", "", "also what was before: for a `TIME` as 5m, or from behind the event of that number")
	flags.StringSliceVar(&c.kinds, "filter", nil, "only events of this `KIND`; may be repeated")
	flags.BoolVar(&c.leave, "leave-instances", false, "leave what the broker has started alone, for the next one")
	c.benchFlags(flags)
	return flags, system, uid
}

// parse reads flags, which may stand anywhere, and returns the words.
func (c *command) parse(args []string) (*pflag.FlagSet, []string, error) {
	flags, system, uid := c.flags()
	if err := flags.Parse(args); err != nil {
		return flags, nil, mistyped(flags, err)
	}
	c.timed = flags.Changed("timeout")
	if flags.Changed("uid") {
		c.uid = uid
	}
	if flags.Changed("end") && !flags.Changed("state") {
		c.state = "closed"
	}
	if *system && c.socket != "" {
		return flags, nil, usageError{"--socket and --system each name a broker: give one of them"}
	}
	if *system {
		c.socket = socket.SystemPath
	}
	return flags, flags.Args(), nil
}

// wish says what a flag takes.
func wish(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "duration":
		return "a time, as 90s or 5m"
	case "int", "uint32":
		return "a whole number"
	case "bool":
		return "nothing behind it, or true or false"
	}
	return "a " + f.Value.Type()
}

// mistyped says what is wrong with flags, and which may be meant by one that there is not.
func mistyped(flags *pflag.FlagSet, err error) error {
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return usageError{fmt.Sprintf("--%s %q: want %s", wrong.GetFlag().Name, wrong.GetValue(), wish(wrong.GetFlag()))}
	}
	none, _ := errors.AsType[*pflag.NotExistError](err)
	if none == nil || none.GetSpecifiedShortnames() != "" {
		return usageError{err.Error()}
	}
	var known []string
	flags.VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	text := err.Error()
	if near := nearest.Of(none.GetSpecifiedName(), known); len(near) > 0 {
		text += ": is it --" + strings.Join(near, " or --") + "?"
	}
	return usageError{text}
}
