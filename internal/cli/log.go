package cli

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/lmittmann/tint"
	"github.com/spf13/pflag"
)

// LogFlags are the flags by which a command is told how to log.
type LogFlags struct {
	level   slog.Level
	format  choice
	verbose bool
	flags   *pflag.FlagSet
}

// AddLogFlags adds --log-level, --log-format and --verbose to a command that logs from a level on unless it is told otherwise.
func AddLogFlags(flags *pflag.FlagSet, usually slog.Level) *LogFlags {
	l := &LogFlags{level: usually, format: choice{value: "auto", of: []string{"auto", "text", "json"}}, flags: flags}
	flags.Var((*level)(&l.level), "log-level", "log from this `LEVEL` on: debug, info, warn or error")
	flags.Var(&l.format, "log-format", "log as `FORMAT`: text, for people; json; auto: text on a terminal, else json")
	flags.BoolVar(&l.verbose, "verbose", false, "as --log-level debug")
	return l
}

// Logger returns the logger that the flags ask for. It writes to stderr.
func (l *LogFlags) Logger() *slog.Logger {
	from := l.level
	if l.verbose && !l.flags.Changed("log-level") {
		from = slog.LevelDebug
	}
	return logger(os.Stderr, from, l.text())
}

// text reports whether to log for people.
func (l *LogFlags) text() bool {
	return l.format.value == "text" || l.format.value == "auto" && Terminal(os.Stderr)
}

// Likewise returns the flags with which a program logs likewise whose lines come to the same place, by way of a pipe: those that were given, and the format that a
// terminal has chosen.
func (l *LogFlags) Likewise() (args []string) {
	for _, name := range []string{"log-level", "log-format", "verbose"} {
		f := l.flags.Lookup(name)
		switch {
		case name == "log-format" && l.text():
			args = append(args, "--log-format=text")
		case f.Changed:
			args = append(args, "--"+name+"="+f.Value.String())
		}
	}
	return args
}

// logger returns a logger that writes for people, in colours on a terminal unless NO_COLOR is set, or as JSON.
func logger(w io.Writer, from slog.Level, people bool) *slog.Logger {
	if !people {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: from}))
	}
	f, ok := w.(*os.File)
	return slog.New(tint.NewHandler(w, &tint.Options{Level: from, NoColor: os.Getenv("NO_COLOR") != "" || !ok || !Terminal(f)}))
}

// A choice is a flag that is one of some words.
type choice struct {
	value string
	of    []string
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return "string" }

// Set takes one of the words.
func (c *choice) Set(text string) error {
	if slices.Contains(c.of, text) {
		c.value = text
		return nil
	}
	return fmt.Errorf("want one of %s", strings.Join(c.of, ", "))
}

// A level is a flag that is one of slog's levels, by its name in small letters.
type level slog.Level

func (l *level) String() string { return strings.ToLower(slog.Level(*l).String()) }
func (l *level) Type() string   { return "string" }

// Set takes the name of a level.
func (l *level) Set(text string) error {
	for _, known := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if (*level)(&known).String() == text {
			*l = level(known)
			return nil
		}
	}
	return fmt.Errorf("want one of debug, info, warn, error")
}
