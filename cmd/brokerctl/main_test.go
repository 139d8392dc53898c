package main_test

import (
	"io"
	"path/filepath"
	"strings"
	"testing"

	brokerctl "github.com/fairlead-dev/fairlead/cmd/brokerctl"
)

func TestFlagsThatWouldDoNothingAreRefused(t *testing.T) {
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
		{"session", usage, "unknown command"},
		{"session open", usage, "unknown command"},
		{"session inspect", usage, "id of one session"},
		{"session inspect a b", usage, "id of one session"},
	} {
		var said strings.Builder
		if code := brokerctl.Run(strings.Fields(test.line), io.Discard, &said); code != test.code || !strings.Contains(said.String(), test.says) {
			t.Errorf("%s: exit code %d, want %d, and it says %q", test.line, code, test.code, said.String())
		}
	}
}
