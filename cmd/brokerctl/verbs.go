package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/internal/nearest"
)

// How long a command may take without --timeout. A service that is stopped has 20 s for that unless its file says otherwise, and one that is started 10 s.
const (
	ordinaryPatience = 10 * time.Second
	longPatience     = time.Minute
)

// What a command's operand is, for whom it is missing.
const (
	aSession = "the id of one session, as 'session list' shows it"
	aService = "the name of one service, as 'service list' shows it"
)

// A verb is what can be done, and with which flags beside those of all commands.
type verb struct {
	all      func(context.Context) error         // of a command that takes no more words
	one      func(context.Context, string) error // of one that takes an operand
	takes    string                              // what that is
	flags    []string
	patience time.Duration // without --timeout; 0: ordinaryPatience
}

func (c *command) verbs() map[string]verb {
	return map[string]verb{
		"status":          {all: c.status},
		"service list":    {all: c.serviceList},
		"service inspect": {one: c.serviceInspect, takes: aService},
		"service start":   {one: c.order(broker.MethodStart, started), takes: aService, patience: longPatience},
		"service stop":    {one: c.order(broker.MethodStop, stopped), takes: aService, patience: longPatience},
		"service restart": {one: c.order(broker.MethodRestart, restarted), takes: aService, patience: longPatience},
		"service wait":    {one: c.order(broker.MethodWait, ready), takes: aService, patience: longPatience},
		"service reset":   {one: c.order(broker.MethodReset, reset), takes: aService},
		"service why":     {one: c.serviceWhy, takes: aService},
		"service logs":    {one: c.serviceLogs, takes: aService, flags: []string{"follow", "lines"}},
		"service reload":  {all: c.serviceReload},
		"session list":    {all: c.sessionList, flags: []string{"state", "endpoint"}},
		"session inspect": {one: c.sessionInspect, takes: aSession},
		"session close":   {one: c.sessionClose, takes: aSession, flags: []string{"reason"}},
		"lease list":      {all: c.leaseList, flags: []string{"network"}},
		"network list":    {all: c.networkList},
		"version":         {all: c.version},
	}
}

// do dispatches the words.
func (c *command) do(words []string, flags *pflag.FlagSet) error {
	verbs := c.verbs()
	name, rest := words[0], words[1:]
	v, known := verbs[name]
	if !known && len(rest) > 0 {
		name, rest = name+" "+rest[0], rest[1:]
		v, known = verbs[name]
	}
	if !known {
		return unknown(name, slices.Sorted(maps.Keys(verbs)))
	}
	if err := ownFlags(name, v, verbs, flags); err != nil {
		return err
	}
	if v.patience > 0 && !flags.Changed("timeout") {
		c.timeout = v.patience
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	switch {
	case v.one != nil && len(rest) == 1:
		return v.one(ctx, rest[0])
	case v.one != nil:
		return usageError{fmt.Sprintf("%s takes %s", name, v.takes)}
	case len(rest) > 0:
		return usageError{fmt.Sprintf("unexpected %q", rest[0])}
	}
	return v.all(ctx)
}

// unknown says that there is no such command, and which may be meant: those with this verb, if it stands alone, else those of the noun that is spelled alike.
func unknown(name string, commands []string) error {
	first, second, _ := strings.Cut(name, " ")
	var meant, nouns []string
	verbs := map[string][]string{} // by noun
	for _, c := range commands {
		noun, verb, _ := strings.Cut(c, " ")
		if verb == first {
			meant = append(meant, c)
		}
		if verbs[noun] == nil {
			nouns = append(nouns, noun)
		}
		verbs[noun] = append(verbs[noun], verb)
	}
	if near := nearest.Of(first, nouns); len(meant) == 0 && len(near) > 0 {
		noun := near[0]
		likely := nearest.Of(second, verbs[noun])
		if len(likely) == 0 {
			likely = verbs[noun]
		}
		for _, verb := range likely {
			meant = append(meant, strings.TrimSpace(noun+" "+verb))
		}
	}
	text := fmt.Sprintf("unknown command %q", name)
	if len(meant) > 0 {
		text += ": is it " + either(meant) + "?"
	}
	return usageError{text}
}

// either joins what can be chosen from.
func either(words []string) string {
	if last := len(words) - 1; last > 0 {
		return strings.Join(words[:last], ", ") + " or " + words[last]
	}
	return strings.Join(words, "")
}

// ownFlags refuses the flags of other commands.
func ownFlags(name string, v verb, verbs map[string]verb, flags *pflag.FlagSet) error {
	for _, owner := range slices.Sorted(maps.Keys(verbs)) {
		for _, flag := range verbs[owner].flags {
			if flags.Changed(flag) && !slices.Contains(v.flags, flag) {
				return usageError{fmt.Sprintf("--%s is a flag of %s and not of %s", flag, owner, name)}
			}
		}
	}
	return nil
}
