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

// InstanceEnded says what monitor does of an instance's end.
func InstanceEnded(e broker.Event) string { return instanceEnded(e) }

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

// A Verb is a command as its help has it.
type Verb struct {
	Name     string
	Examples []string
	Help     string
}

// Verbs returns all commands.
func Verbs() (list []Verb) {
	c := &command{}
	flags, _, _ := c.flags()
	for _, v := range c.verbs() {
		list = append(list, Verb{v.name, v.examples, v.help(flags)})
	}
	return list
}
