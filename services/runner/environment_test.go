package runner_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/services/runner"
)

func TestEnvironmentTellsTheLeases(t *testing.T) {
	leases := []*network.Lease{
		{
			Network: "default", Hostname: "web", MAC: "02:00:00:00:00:01",
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.88.0.2/24"), netip.MustParsePrefix("fd00::2/64")},
			Gateways:  []netip.Addr{netip.MustParseAddr("10.88.0.1"), netip.MustParseAddr("fd00::1")},
		},
		{Network: "back", Addresses: []netip.Prefix{netip.MustParsePrefix("10.89.0.9/16")}},
	}
	want := []string{
		"FAIRLEAD_NETWORK=default", "FAIRLEAD_ADDRESS=10.88.0.2/24 fd00::2/64", "FAIRLEAD_GATEWAY=10.88.0.1 fd00::1",
		"FAIRLEAD_MAC=02:00:00:00:00:01", "FAIRLEAD_HOSTNAME=web",
		"FAIRLEAD_NETWORK_2=back", "FAIRLEAD_ADDRESS_2=10.89.0.9/16", "FAIRLEAD_GATEWAY_2=",
		"FAIRLEAD_MAC_2=", "FAIRLEAD_HOSTNAME_2=",
	}
	if got := runner.Environment(leases); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := runner.Environment(nil); len(got) != 0 {
		t.Errorf("without leases: %q", got)
	}
}

func TestExitStatus(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{&runner.ExitError{Code: 3}, 3},
		{&runner.ExitError{Signal: syscall.SIGINT}, 130},
		{&runner.StartError{Path: "x", Err: syscall.ENOENT}, 127},
		{&runner.StartError{Path: "x", Err: syscall.ENOEXEC}, 126},
		{&runner.LostError{Network: "default"}, 69},
		{&runner.LostError{Network: "default", Err: &runner.ExitError{Code: 3}}, 69},
		{fmt.Errorf("%w (%w)", context.Canceled, &runner.ExitError{Signal: syscall.SIGTERM}), 143},
		{&runner.WitnessError{Network: "default", Err: context.Canceled}, 125},
		{errors.New("anything"), 125},
	} {
		if got := runner.ExitStatus(test.err); got != test.want {
			t.Errorf("status %d for %v, want %d", got, test.err, test.want)
		}
	}
}
