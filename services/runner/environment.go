package runner

import (
	"fmt"
	"strings"

	"github.com/fairlead-dev/fairlead/services/network"
)

// Environment returns the variables, in the form of exec.Cmd.Env, that tell a command its
// leases: FAIRLEAD_NETWORK, FAIRLEAD_ADDRESS (with its prefix length, as 10.88.0.2/24),
// FAIRLEAD_GATEWAY, FAIRLEAD_MAC and FAIRLEAD_HOSTNAME for the first lease, the same with _2
// for the second, and so on. Several addresses or gateways of one lease are separated by a
// space. What a lease does not have is an empty variable, so that one inherited from an outer
// container never shows.
//
// Run does not set them; a caller does, with
//
//	cmd.Env = append(cmd.Environ(), runner.Environment(leases)...)
func Environment(leases []*network.Lease) []string {
	var env []string
	for i, lease := range leases {
		suffix := ""
		if i > 0 {
			suffix = fmt.Sprintf("_%d", i+1)
		}
		env = append(env,
			"FAIRLEAD_NETWORK"+suffix+"="+lease.Network,
			"FAIRLEAD_ADDRESS"+suffix+"="+join(lease.Addresses),
			"FAIRLEAD_GATEWAY"+suffix+"="+join(lease.Gateways),
			"FAIRLEAD_MAC"+suffix+"="+lease.MAC,
			"FAIRLEAD_HOSTNAME"+suffix+"="+lease.Hostname,
		)
	}
	return env
}

func join[T fmt.Stringer](values []T) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, " ")
}
