package console

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// SessionListing is how sessions are shown.
var SessionListing = cli.Listing[broker.Session]{
	Thing: "session",
	Columns: []cli.Column[broker.Session]{
		{Name: "ID", Cell: func(s broker.Session) string { return session.ShortID(s.ID) }},
		{Name: "ENDPOINT", Cell: func(s broker.Session) string { return s.Endpoint }},
		{Name: "STATE", Cell: func(s broker.Session) string { return s.State }, Tone: sessionTone},
		{Name: "AGE", Cell: func(s broker.Session) string { return cli.Age(s.OpenedAt) }, Order: By(func(s broker.Session) wire.Time { return -s.OpenedAt })},
		{Name: "CLIENT", Cell: func(s broker.Session) string { return cli.Who(s.Client) }},
		{Name: "UID", Cell: func(s broker.Session) string { return fmt.Sprint(s.Client.UID) }, Order: By(func(s broker.Session) uint32 { return s.Client.UID })},
		{Name: "INSTANCE", Cell: func(s broker.Session) string { return cli.Who(s.Instance) }},
		{Name: "TITLE", Cell: func(s broker.Session) string { return s.Title }},
		{Name: "END", Cell: func(s broker.Session) string { return End(s.End) }},
	},
	Totals: func(all []broker.Session) string {
		states := map[string]int{}
		for _, s := range all {
			states[s.State]++
		}
		return fmt.Sprintf("%d opening, %d open, %d closed", states[broker.SessionOpening], states[broker.SessionOpen], states[broker.SessionClosed])
	},
}

// By orders rows by what is taken of them.
func By[T any, V cmp.Ordered](of func(T) V) func(a, b T) int {
	return func(a, b T) int { return cmp.Compare(of(a), of(b)) }
}

func sessionTone(s broker.Session) cli.Tone {
	switch s.State {
	case broker.SessionOpening:
		return cli.Busy
	case broker.SessionOpen:
		return cli.Good
	}
	return cli.Plain
}

// PrintSessions writes the table of sessions.
func PrintSessions(w io.Writer, list []broker.Session) error {
	return SessionListing.Print(w, cli.View{}, list)
}

// LeaseListing is how leases are shown.
var LeaseListing = cli.Listing[network.LeaseInfo]{
	Thing: "lease",
	Columns: []cli.Column[network.LeaseInfo]{
		{Name: "ID", Cell: func(l network.LeaseInfo) string { return l.ID }},
		{Name: "NETWORK", Cell: func(l network.LeaseInfo) string { return l.Network }},
		{Name: "ADDRESSES", Cell: func(l network.LeaseInfo) string { return strings.Join(l.Addresses, ",") }},
		{Name: "HOSTNAME", Cell: func(l network.LeaseInfo) string { return l.Hostname }},
		{Name: "STATE", Cell: func(l network.LeaseInfo) string { return l.State }, Tone: leaseTone},
		{Name: "AGE", Cell: func(l network.LeaseInfo) string { return cli.Age(l.AllocatedAt) }, Order: By(func(l network.LeaseInfo) wire.Time { return -l.AllocatedAt })},
		{Name: "HOLDER", Cell: func(l network.LeaseInfo) string { return fmt.Sprint(l.Holder.PID) }, Order: By(func(l network.LeaseInfo) int { return l.Holder.PID })},
		{Name: "UID", Cell: func(l network.LeaseInfo) string { return fmt.Sprint(l.Holder.UID) }, Order: By(func(l network.LeaseInfo) uint32 { return l.Holder.UID })},
		{Name: "SESSION", Cell: func(l network.LeaseInfo) string { return session.ShortID(l.Session) }},
	},
	Totals: func(all []network.LeaseInfo) string {
		states := map[string]int{}
		for _, l := range all {
			states[l.State]++
		}
		return fmt.Sprintf("%d held, %d dying, %d orphaned", states[network.StateHeld], states[network.StateDying], states[network.StateOrphaned])
	},
}

func leaseTone(l network.LeaseInfo) cli.Tone {
	switch l.State {
	case network.StateHeld:
		return cli.Good
	case network.StateDying:
		return cli.Busy
	case network.StateOrphaned:
		return cli.Bad
	}
	return cli.Plain
}

// PrintLeases writes the table of leases.
func PrintLeases(w io.Writer, list []network.LeaseInfo) error {
	return LeaseListing.Print(w, cli.View{}, list)
}
