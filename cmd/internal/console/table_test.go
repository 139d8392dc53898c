package console_test

import (
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestTablesShowOneRowForEachAndEscapeWhatOthersWrote(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 2)
	client, instance := wire.Process{PID: 7, UID: 8, Program: "curl"}, wire.Process{PID: 9}
	for _, test := range []struct {
		name  string
		print func(*strings.Builder) error
		want  string
	}{
		{"no session", func(b *strings.Builder) error { return console.PrintSessions(b, nil) }, "ID ENDPOINT STATE AGE CLIENT UID INSTANCE TITLE END"},
		{"an open session", func(b *strings.Builder) error {
			return console.PrintSessions(b, []broker.Session{{ID: id, Endpoint: "e", State: broker.SessionOpen, Client: client, Instance: instance, Title: "a\x1b[2J"}})
		}, `01234567 e open - curl[7] 8 9 a\x1b[2J -`},
		{"a closed session", func(b *strings.Builder) error {
			end := &wire.End{Code: wire.Invalid, Origin: wire.Peer, Text: "closed"}
			return console.PrintSessions(b, []broker.Session{{ID: id, Endpoint: "e", State: broker.SessionClosed, Client: client, Instance: instance, End: end}})
		}, "01234567 e closed - curl[7] 8 9 - closed by the client"},
		{"a lease", func(b *strings.Builder) error {
			return console.PrintLeases(b, []network.LeaseInfo{{
				ID: "l", Network: "n", Addresses: []string{"10.9.0.2/24", "fd00::2/64"}, Hostname: "web", State: network.StateHeld,
				Holder: network.Holder{PID: 7, UID: 8}, Session: id,
			}})
		}, "l n 10.9.0.2/24,fd00::2/64 web held - 7 8 01234567"},
	} {
		var b strings.Builder
		if err := test.print(&b); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		if got := strings.Join(strings.Fields(lines[len(lines)-1]), " "); got != test.want {
			t.Errorf("%s shows as\n%s, want\n%s", test.name, got, test.want)
		}
	}
}
