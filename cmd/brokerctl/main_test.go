package main_test

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/client"
	brokerctl "github.com/fairlead-dev/fairlead/cmd/brokerctl"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestWhatIsMistypedIsRefusedBeforeAnybodyIsAsked(t *testing.T) {
	t.Setenv("FAIRLEAD_SOCKET", filepath.Join(t.TempDir(), "none"))
	const (
		noBroker = 5
		usage    = 2
	)
	for _, test := range []struct {
		line string
		code int
		says string
	}{
		{"lease list --state closed", usage, "--state is a flag of session list and not of lease list"},
		{"status --endpoint fairlead.network", usage, "--endpoint"},
		{"session list --network default", usage, "--network"},
		{"network list --network default", usage, "--network"},
		{"session inspect abc --reason x", usage, "--reason"},
		{"version --state open", usage, "--state"},
		{"status --system --socket /x/s", usage, "--socket and --system"},
		{"--socket /x/s --system", usage, "--socket and --system"},
		{"session list --state closed --endpoint fairlead.network --json", noBroker, "no broker"},
		{"session close abc --reason x", noBroker, "no broker"},
		{"lease list --network default --timeout 1s", noBroker, "no broker"},
		{"status more", usage, "more"},
		{"session", usage, "these are those of session:\n  brokerctl session list                the sessions"},
		{"lease ls", usage, "these are those of lease:\n  brokerctl lease list                  the leases"},
		{"services", usage, "these are those of service:\n  brokerctl service list                "},
		{"session open", usage, "unknown command"},
		{"session lst", usage, "is it session list?"},
		{"service", usage, "\n  brokerctl service wait NAME "},
		{"service lst", usage, "is it service list?"},
		{"sevrice restrat x", usage, "is it service restart?"},
		{"start com.example.echo", usage, "is it service start?"},
		{"list", usage, "is it lease list, network list, service list or session list?"},
		{"nothing alike", usage, `unknown command "nothing alike"`},
		{"reset", usage, "is it service reset?"},
		{"statsu --json", usage, "is it status?"},
		{"sessoin", usage, "these are those of session:\n"},
		{"service list x", usage, "unexpected"},
		{"service reload x", usage, "unexpected"},
		{"service start", usage, "name of one service"},
		{"service why a b", usage, "name of one service"},
		{"service logs", usage, "name of one service"},
		{"service list -f", usage, "--follow is a flag of service logs and not of service list"},
		{"service why x -n 3", usage, "--lines is a flag of service logs"},
		{"service stop x --reason y", usage, "--reason"},
		{"service logs x --json", usage, "--json"},
		{"service logs x -n 0", usage, "1 to 10000"},
		{"service logs x -n many", usage, `--lines "many": want a whole number`},
		{"service logs x -f -n 3", noBroker, "no broker"},
		{"-fn3 service logs x", noBroker, "no broker"},
		{"service list --json", noBroker, "no broker"},
		{"service inspect x --json", noBroker, "no broker"},
		{"service start x --timeout 1s", noBroker, "no broker"},
		{"service stop x", noBroker, "no broker"},
		{"service restart x", noBroker, "no broker"},
		{"service wait x", noBroker, "no broker"},
		{"service reset x", noBroker, "no broker"},
		{"service why x", noBroker, "no broker"},
		{"service reload", noBroker, "no broker"},
		{"session inspect", usage, "id of one session"},
		{"session inspect a b", usage, "id of one session"},
	} {
		var said strings.Builder
		if code := brokerctl.Run(strings.Fields(test.line), io.Discard, &said); code != test.code || !strings.Contains(said.String(), test.says) {
			t.Errorf("%s: exit code %d, want %d, and it says %q", test.line, code, test.code, said.String())
		}
	}
}

// The exit codes are a contract: docs/operating.md.
func TestEachErrorHasItsExitCode(t *testing.T) {
	codes := map[wire.Code]int{
		wire.NotFound: 3, wire.UnknownEndpoint: 3, wire.Unavailable: 3, wire.StartFailed: 3, wire.StartTimeout: 3, wire.Suspended: 3, wire.Terminating: 3,
		wire.NotPermitted: 4, wire.Refused: 4, wire.DeadlineExceeded: 6, wire.Malformed: 2, wire.Conflict: 2,
		wire.OverQuota: 1, wire.Interrupted: 1, wire.Invalid: 1, wire.UnknownMethod: 1, wire.Canceled: 1, wire.Exhausted: 1, wire.Unsupported: 1, wire.Internal: 1,
	}
	for code, want := range codes {
		var said strings.Builder
		if got := brokerctl.Report(&said, fmt.Errorf("do it: %w", wire.Errorf(code, "the reason"))); got != want || !strings.Contains(said.String(), "the reason") {
			t.Errorf("%s: exit code %d, want %d, and it says %q", code, got, want, said.String())
		}
	}
	for err, want := range map[error]int{nil: 0, syscall.EPIPE: 0, io.ErrShortWrite: 1, &client.NoBrokerError{Path: "/x"}: 5} {
		if got := brokerctl.Report(io.Discard, err); got != want {
			t.Errorf("%v: exit code %d, want %d", err, got, want)
		}
	}
}
