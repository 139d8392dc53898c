package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/internal/explain"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const (
	// completing is the word that a shell's completion begins with, which no help shows. Behind it are the words of the line, and last the one that is completed.
	completing = "__complete"
	// completePatience is how long the live names may take: what is there by then is offered.
	completePatience = 200 * time.Millisecond
	// maxCandidates bounds how many names a shell is offered.
	maxCandidates = 1000
)

// A candidate is what a word may be completed to, and what it is.
type candidate struct{ word, about string }

// complete prints what the last of the words may become, a line each: the word, and behind a tab what it is. It says nothing where it does not know.
func (c *command) complete(words []string) {
	if len(words) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), completePatience)
	defer cancel()
	offers := make(chan []candidate, 1)
	go func() { // may outlive this by the time that a session with a broker that does not answer takes to close; the program ends
		offers <- c.candidates(ctx, words[:len(words)-1], words[len(words)-1])
	}()
	select {
	case list := <-offers:
		var out bytes.Buffer
		for _, offer := range list[:min(len(list), maxCandidates)] {
			fmt.Fprintf(&out, "%s\t%s\n", offer.word, wire.Printable(offer.about, 128))
		}
		c.out.Write(out.Bytes()) // a shell that does not read it has no use for an error either
	case <-ctx.Done():
	}
}

// candidates are what the last word may become.
func (c *command) candidates(ctx context.Context, before []string, last string) (offers []candidate) {
	flags, system, _ := c.flags()
	flags.ParseErrorsAllowlist.UnknownFlags = true
	line := newLine(flags, before)
	flags.Parse(line.whole) // what is wrong with it is told when it is run
	if *system {
		c.socket = socket.SystemPath
	}
	v, operands, found := c.standing(flags.Args())
	name, _, isValue := strings.Cut(last, "=")
	switch {
	case line.open != "":
		offers = c.values(ctx, v, line.open)
	case strings.HasPrefix(last, "--") && isValue:
		for _, offer := range c.values(ctx, v, strings.TrimPrefix(name, "--")) {
			offers = append(offers, candidate{name + "=" + offer.word, offer.about})
		}
	case strings.HasPrefix(last, "-"):
		offers = flagCandidates(flags, v, found)
	case !found:
		offers = c.nextWords(flags.Args())
	default:
		offers = c.operands(ctx, v, operands)
	}
	return slices.DeleteFunc(offers, func(o candidate) bool { return !strings.HasPrefix(o.word, last) })
}

// A line is the words before the one that is completed.
type line struct {
	whole []string // without a flag at the end that waits for its value
	open  string   // the name of that flag
}

func newLine(flags *pflag.FlagSet, words []string) line {
	if len(words) == 0 {
		return line{}
	}
	last := words[len(words)-1]
	f := flags.Lookup(strings.TrimPrefix(last, "--"))
	if f == nil && len(last) == 2 {
		f = flags.ShorthandLookup(last[1:])
	}
	if f == nil || !strings.HasPrefix(last, "-") || f.NoOptDefVal != "" {
		return line{whole: words}
	}
	return line{words[:len(words)-1], f.Name}
}

// standing returns the command that the words name, if they do, and its operands.
func (c *command) standing(words []string) (v verb, operands []string, found bool) {
	if len(words) == 0 {
		return verb{}, nil, false
	}
	v, operands, err := c.find(words)
	return v, operands, err == nil
}

// nextWords are the words that a command may have next.
func (c *command) nextWords(words []string) (offers []candidate) {
	for _, v := range c.verbs() {
		noun, second, _ := strings.Cut(v.name, " ")
		switch {
		case len(words) == 0 && second == "":
			offers = append(offers, candidate{noun, v.about})
		case len(words) == 0 && !slices.ContainsFunc(offers, func(o candidate) bool { return o.word == noun }):
			offers = append(offers, candidate{noun, "see 'brokerctl help " + noun + "'"})
		case len(words) == 1 && words[0] == noun && second != "":
			offers = append(offers, candidate{second, v.about})
		}
	}
	return offers
}

func flagCandidates(flags *pflag.FlagSet, v verb, found bool) (offers []candidate) {
	names := commonFlags
	if found {
		names = append(slices.Clone(v.flags), commonFlags...)
	}
	for _, name := range names {
		_, about := pflag.UnquoteUsage(flags.Lookup(name))
		offers = append(offers, candidate{"--" + name, about})
	}
	return offers
}

// operands are what a command's next operand may be.
func (c *command) operands(ctx context.Context, v verb, given []string) []candidate {
	switch {
	case v.name == "help":
		return c.nextWords(given)
	case len(given) > 0:
		return nil
	}
	switch v.takes {
	case aService:
		return c.services(ctx)
	case aSession:
		return c.sessions(ctx)
	case anEndpoint, aCall:
		return c.endpoints(ctx)
	case aNetwork:
		return c.networks(ctx)
	case aLease:
		return c.leases(ctx)
	case aCode:
		return codeCandidates()
	case aShell:
		return plain("bash", "zsh", "fish")
	}
	return nil
}

// values are what a flag may be set to.
func (c *command) values(ctx context.Context, v verb, flag string) []candidate {
	switch flag {
	case "state":
		return plain("open", "closed", "all")
	case "endpoint":
		return c.endpoints(ctx)
	case "network":
		return c.networks(ctx)
	case "end", "accept":
		return codeCandidates()
	case "filter":
		return plain(monitorKinds()...)
	case "sort", "columns":
		return plain(cli.Fold(v.columns)...)
	}
	return nil
}

func plain(words ...string) (offers []candidate) {
	for _, w := range words {
		offers = append(offers, candidate{word: w})
	}
	return offers
}

func codeCandidates() (offers []candidate) {
	for _, e := range explain.Codes() {
		offers = append(offers, candidate{string(e.Code), e.Means})
	}
	return offers
}

func (c *command) services(ctx context.Context) (offers []candidate) {
	list, _ := ask[broker.Services](ctx, c, broker.MethodServices, nil) // none is offered where they cannot be had
	for _, s := range list.Services {
		offers = append(offers, candidate{s.Name, s.State})
	}
	return offers
}

func (c *command) endpoints(ctx context.Context) (offers []candidate) {
	list, _ := ask[broker.Services](ctx, c, broker.MethodServices, nil)
	for _, s := range list.Services {
		for _, e := range s.Endpoints {
			offers = append(offers, candidate{e, s.Name + ", " + s.State})
		}
	}
	return offers
}

// sessions are the open ones, by whole ids, as the beginning of one may be that of several.
func (c *command) sessions(ctx context.Context) (offers []candidate) {
	list, _ := console.Sessions(ctx, c.options(), broker.SessionsRequest{}) // none is offered where they cannot be had
	for _, s := range list {
		offers = append(offers, candidate{s.ID, strings.TrimSpace(s.Endpoint + " " + cli.Who(s.Client) + " " + s.Title)})
	}
	return offers
}

// networks are those of a network service that runs.
func (c *command) networks(ctx context.Context) (offers []candidate) {
	c.whileNetworkRuns(ctx, func(s *client.Session) error {
		list, err := network.Networks(ctx, s)
		for _, n := range list {
			offers = append(offers, candidate{n.Name, strings.Join(n.Prefixes, ", ")})
		}
		return err
	})
	return offers
}

// leases are those of a network service that runs, by id.
func (c *command) leases(ctx context.Context) (offers []candidate) {
	c.whileNetworkRuns(ctx, func(s *client.Session) error {
		list, err := network.List(ctx, s, network.ListRequest{})
		for _, l := range list {
			offers = append(offers, candidate{l.ID, strings.Join(append([]string{l.Network, l.Hostname}, l.Addresses...), " ")})
		}
		return err
	})
	return offers
}
