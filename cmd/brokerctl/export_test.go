package main

import (
	"io"

	"github.com/fairlead-dev/fairlead/broker"
)

var (
	// Run runs a command line.
	Run = run
	// Report prints an error and returns its exit code.
	Report = report
)

// Why says what service why does.
func Why(d broker.ServiceDetails) string { return why(d) }

// Escape writes parts of a text as they are shown on a terminal.
func Escape(w io.Writer, parts ...[]byte) error {
	e := &escaper{w: w}
	for _, p := range parts {
		if _, err := e.Write(p); err != nil {
			return err
		}
	}
	return e.end()
}

// Commands returns the names of all commands.
func Commands() []string { return names((&command{}).verbs()) }
