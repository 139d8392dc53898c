package server

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

const (
	// maxNamed is how many of those that are in the way are named in an error.
	maxNamed = 8
	// maxLongest is how many of the longest holders are named.
	maxLongest = 3
)

// refusalLocked says why a wish is not fulfilled.
func (s *Server) refusalLocked(w *wish, o *obstacle) error {
	g := w.segment
	switch {
	case o.err != nil:
		return o.err
	case o.gone && w.holder.gone:
		return w.holder.errLocked()
	case o.gone:
		return wire.Errorf(wire.NotFound, "the witness is gone")
	case o.other != nil && o.passing:
		e := wire.Errorf(wire.Unavailable, "%s on network %s is not free yet: %s", o.what, g.Name, o.other.describe())
		e.Holder = o.other.wireHolder()
		return e
	case o.other != nil:
		e := wire.Errorf(wire.Conflict, "%s on network %s is held by process %d (uid %d) with lease %s",
			o.what, g.Name, o.other.client.PID, o.other.client.UID, o.other.id)
		e.Holder = o.other.wireHolder()
		return e
	case o.doubt:
		return s.doubtLocked(g)
	case o.passing:
		return s.busyLocked(g)
	}
	return s.exhaustedLocked(g, o.family)
}

// exhaustedLocked says how the addresses of a family are used, and who has held one for longest.
func (s *Server) exhaustedLocked(g *segment, f *family) error {
	name := "IPv4"
	if f.six {
		name = "IPv6"
	}
	c := f.counts(s.cooled(g), false)
	text := fmt.Sprintf("network %s has no free %s address: of %d, %d are held, %d reserved, %d cooling and %d orphaned",
		g.Name, name, c.Total, c.Held, c.Reserved, c.Cooling, c.orphaned)
	longest := g.longest()
	if len(longest) == 0 {
		return wire.Errorf(wire.Exhausted, "%s", text)
	}
	var names []string
	for _, l := range longest {
		host := ""
		if l.hostname != "" {
			host = " (" + wire.Cut(l.hostname, 64) + ")"
		}
		names = append(names, fmt.Sprintf("process %d%s for %v", l.client.PID, host, time.Since(l.at).Round(time.Second)))
	}
	e := wire.Errorf(wire.Exhausted, "%s; held for longest by %s", text, strings.Join(names, ", "))
	e.Holder = longest[0].wireHolder()
	return e
}

// longest returns the leases that were allocated longest ago, at most three.
func (g *segment) longest() []*lease {
	var list []*lease
	for l := g.oldest; l != nil && len(list) < maxLongest; l = l.after {
		list = append(list, l)
	}
	return list
}

// doubtLocked says who keeps everything that is not known from being given out.
func (s *Server) doubtLocked(g *segment) error {
	var pids []string
	for k := range s.doubt.suspects {
		pids = append(pids, fmt.Sprint(k.id.PID))
	}
	who := "they are being looked for"
	if len(pids) > 0 {
		slices.Sort(pids)
		who = "process " + some(pids)
	}
	why := ""
	if s.doubt.reason != nil {
		why = fmt.Sprintf(" (%v)", s.doubt.reason)
	}
	return wire.Errorf(wire.Unavailable, "network %s gives no address out before the processes that could hold one are gone: %s%s", g.Name, who, why)
}

// busyLocked says which leases are about to be free: some of them, and how many there are.
func (s *Server) busyLocked(g *segment) error {
	var some []*lease
	for l := range g.unheld {
		if some = append(some, l); len(some) == maxNamed {
			break
		}
	}
	slices.SortFunc(some, func(a, b *lease) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.id, b.id)) })
	var names []string
	for _, l := range some {
		names = append(names, l.describe())
	}
	e := wire.Errorf(wire.Unavailable, "network %s has no free address yet: %s", g.Name, andMore(names, len(g.unheld)-len(some)))
	if len(some) > 0 {
		e.Holder = some[0].wireHolder()
	}
	return e
}

// some joins the first few names, and counts the others.
func some(names []string) string {
	first := names[:min(len(names), maxNamed)]
	return andMore(first, len(names)-len(first))
}

// andMore joins names, and says how many more there are.
func andMore(names []string, more int) string {
	text := strings.Join(names, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// describe names a lease that is dying or orphaned, and what keeps it.
func (l *lease) describe() string {
	var names []string
	for _, k := range l.keepers {
		names = append(names, k.String())
	}
	slices.Sort(names)
	if len(names) == 0 {
		names = []string{fmt.Sprintf("process %d", l.client.PID)}
	}
	return fmt.Sprintf("lease %s of %v is %s and kept by %s", l.id, l.addresses[0], shown[l.state], some(names))
}
