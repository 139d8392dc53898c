package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/internal/cli"
)

const codes = `exit codes: 0 done, 1 failed, 2 usage, 3 not found or not running, 4 denied, 5 no broker, 6 timed out
`

// commonFlags are those of all commands.
var commonFlags = []string{"socket", "system", "json", "timeout", "help"}

// help says what the words' command does, or what there is.
func (c *command) help(_ context.Context, words []string) error {
	flags, _, _ := c.flags()
	text, err := c.helpOf(words, flags)
	if err != nil {
		return err
	}
	_, err = io.WriteString(c.out, text)
	return err
}

// helpOf is the help of a command, of all those of a noun, or of the whole program.
func (c *command) helpOf(words []string, flags *pflag.FlagSet) (string, error) {
	all := c.verbs()
	if len(words) == 0 {
		return "brokerctl looks into a Fairlead broker and steers it. Alone it prints the status.\n\nusage:\n" + usages(all) +
			"\nflags, before or after the words; 'brokerctl help COMMAND' has those of one command:\n" + flagUsages(flags, commonFlags) + "\n" + codes, nil
	}
	ofNoun := slices.DeleteFunc(slices.Clone(all), func(v verb) bool { return !strings.HasPrefix(v.name, words[0]+" ") })
	if len(words) == 1 && len(ofNoun) > 0 {
		return "usage:\n" + usages(ofNoun), nil
	}
	v, _, err := c.find(words)
	if err != nil {
		return "", err
	}
	return v.help(flags), nil
}

// help is what there is to know of one command.
func (v verb) help(flags *pflag.FlagSet) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nusage:\n  brokerctl %s\n", sentence(v.about), strings.Join(strings.Fields(v.name+" "+v.usage+" [flags]"), " "))
	if v.more != "" {
		fmt.Fprintf(&b, "\n%s\n", v.more)
	}
	if v.columns != nil {
		fmt.Fprintf(&b, "\ncolumns: %s\n", strings.Join(cli.Fold(v.columns), ", "))
	}
	if len(v.flags) > 0 {
		fmt.Fprintf(&b, "\nflags:\n%s", flagUsages(flags, v.flags))
	}
	fmt.Fprintf(&b, "\nflags of all commands:\n%s", flagUsages(flags, commonFlags))
	b.WriteString("\nexamples:\n")
	for _, e := range v.examples {
		fmt.Fprintf(&b, "  brokerctl %s\n", e)
	}
	return b.String()
}

// usages shows commands, each with what it does.
func usages(verbs []verb) string {
	const width = 26
	var b strings.Builder
	for _, v := range verbs {
		words := strings.TrimSpace(v.name + " " + v.usage)
		if len(words) > width {
			words += "\n" + strings.Repeat(" ", len("  brokerctl ")+width)
		}
		fmt.Fprintf(&b, "  brokerctl %-*s  %s\n", width, words, v.about)
	}
	return b.String()
}

// flagUsages describes some flags.
func flagUsages(flags *pflag.FlagSet, names []string) string {
	some := pflag.NewFlagSet("", pflag.ContinueOnError)
	some.SortFlags = false
	for _, name := range names {
		some.AddFlag(flags.Lookup(name))
	}
	return some.FlagUsages()
}
