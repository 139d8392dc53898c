package console

import (
	"fmt"
	"io"
	"strings"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/internal/cli"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// PrintSessions writes the table of sessions.
func PrintSessions(w io.Writer, list []broker.Session) error {
	t := cli.NewTable("ID", "ENDPOINT", "STATE", "AGE", "CLIENT", "UID", "INSTANCE", "TITLE", "END")
	for _, s := range list {
		t.Row(session.ShortID(s.ID), s.Endpoint, s.State, cli.Age(s.OpenedAt), cli.Who(s.Client), fmt.Sprint(s.Client.UID), cli.Who(s.Instance), s.Title, End(s))
	}
	return t.Print(w)
}

// End says how a session has ended; nothing of one that is open.
func End(s broker.Session) string {
	if s.End == nil {
		return ""
	}
	return fmt.Sprintf("%s by %s: %s", s.End.Code, s.End.Origin, s.End.Text)
}

// PrintLeases writes the table of leases.
func PrintLeases(w io.Writer, list []network.LeaseInfo) error {
	t := cli.NewTable("ID", "NETWORK", "ADDRESSES", "HOSTNAME", "STATE", "AGE", "HOLDER", "UID", "SESSION")
	for _, l := range list {
		t.Row(l.ID, l.Network, strings.Join(l.Addresses, ","), l.Hostname, l.State, cli.Age(l.AllocatedAt), fmt.Sprint(l.Holder.PID), fmt.Sprint(l.Holder.UID), session.ShortID(l.Session))
	}
	return t.Print(w)
}
