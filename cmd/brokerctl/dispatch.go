package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/internal/nearest"
)

// find returns the command that the words begin with, and the rest of them.
func (c *command) find(words []string) (v verb, rest []string, err error) {
	verbs := c.verbs()
	for n := 1; n <= min(2, len(words)); n++ {
		name := strings.Join(words[:n], " ")
		if i := slices.IndexFunc(verbs, func(v verb) bool { return v.name == name }); i >= 0 {
			return verbs[i], words[n:], nil
		}
	}
	return verb{}, nil, unknown(strings.Join(words[:min(2, len(words))], " "), verbs)
}

// names returns the names of commands, by name.
func names(verbs []verb) (list []string) {
	for _, v := range verbs {
		list = append(list, v.name)
	}
	slices.Sort(list)
	return list
}

// do dispatches the words.
func (c *command) do(words []string, flags *pflag.FlagSet) error {
	v, rest, err := c.find(words)
	if err == nil {
		err = ownFlags(v, c.verbs(), flags)
	}
	if err == nil {
		err = c.check(v, flags)
	}
	if err != nil {
		return err
	}
	run, err := v.run(rest)
	if err != nil {
		return err
	}
	if v.patience > 0 && !c.timed {
		c.timeout = v.patience
	}
	once := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		return run(ctx)
	}
	if c.watch > 0 {
		return c.watched(v.name, once)
	}
	return once(context.Background())
}

// run returns what the command does with its operands.
func (v verb) run(operands []string) (func(context.Context) error, error) {
	switch {
	case v.words != nil:
		return func(ctx context.Context) error { return v.words(ctx, operands) }, nil
	case v.all != nil && len(operands) == 0:
		return v.all, nil
	case v.one != nil && len(operands) == 1:
		return func(ctx context.Context) error { return v.one(ctx, operands[0]) }, nil
	case v.one != nil:
		return nil, usageError{fmt.Sprintf("%s takes %s", v.name, v.takes)}
	}
	text := fmt.Sprintf("unexpected %q", operands[0])
	if _, err := time.ParseDuration(operands[0]); err == nil && slices.Contains(v.flags, "watch") {
		text += ": is it --watch=" + operands[0] + "?"
	}
	return nil, usageError{text}
}

// check checks the flags of a list.
func (c *command) check(v verb, flags *pflag.FlagSet) error {
	if flags.Changed("watch") && c.watch < shortestWatch {
		return usageError{fmt.Sprintf("--watch %v: want %v or more", c.watch, shortestWatch)}
	}
	if v.columns == nil {
		return nil
	}
	if c.json && (c.view.NoLegend || len(c.view.Columns) > 0) {
		return usageError{"--no-legend and --columns are for tables, and --json prints every field: give one of them"}
	}
	if err := cli.CheckView(c.view, v.columns); err != nil {
		return usageError{v.name + ": " + err.Error()}
	}
	return nil
}

// unknown says that there is no such command, and which may be meant: of a noun that there is, or the one that is spelled alike, the verb that is spelled alike, or else
// all of them; of a verb that stands alone those that have it.
func unknown(name string, verbs []verb) error {
	first, second, _ := strings.Cut(name, " ")
	var alone []string               // commands with this verb
	nouns := map[string][]verb{}     // their commands
	seconds := map[string][]string{} // their verbs
	for _, v := range verbs {
		noun, word, _ := strings.Cut(v.name, " ")
		if word == first {
			alone = append(alone, v.name)
		}
		nouns[noun] = append(nouns[noun], v)
		seconds[noun] = append(seconds[noun], word)
	}
	text := fmt.Sprintf("unknown command %q", name)
	if len(alone) > 0 && nouns[first] == nil {
		slices.Sort(alone)
		return usageError{text + ": is it " + either(alone) + "?"}
	}
	near := nearest.Of(first, slices.Sorted(maps.Keys(nouns)))
	if len(near) == 0 {
		return usageError{text}
	}
	noun := near[0]
	likely := nearest.Of(second, seconds[noun])
	if len(seconds[noun]) == 1 {
		likely = seconds[noun]
	}
	if len(likely) == 0 {
		return usageError{text + ": these are those of " + noun + ":\n" + strings.ReplaceAll(strings.TrimSpace(usages(nouns[noun])), "\n  ", "\n")}
	}
	for i, word := range likely {
		likely[i] = strings.TrimSpace(noun + " " + word)
	}
	return usageError{text + ": is it " + either(likely) + "?"}
}

// either joins what can be chosen from.
func either(words []string) string {
	if last := len(words) - 1; last > 0 {
		return strings.Join(words[:last], ", ") + " or " + words[last]
	}
	return strings.Join(words, "")
}

// ownFlags refuses the flags of other commands.
func ownFlags(v verb, verbs []verb, flags *pflag.FlagSet) error {
	owners := map[string][]string{}
	for _, owner := range verbs {
		for _, flag := range owner.flags {
			owners[flag] = append(owners[flag], owner.name)
		}
	}
	var err error
	flags.Visit(func(f *pflag.Flag) {
		if of := owners[f.Name]; len(of) > 0 && !slices.Contains(v.flags, f.Name) && err == nil {
			err = usageError{fmt.Sprintf("--%s is a flag of %s and not of %s", f.Name, either(of), v.name)}
		}
	})
	return err
}
