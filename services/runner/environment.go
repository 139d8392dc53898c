package runner

import (
	"fmt"
	"strings"

	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// Environment returns the variables, in the form of exec.Cmd.Env, that tell a command its
// leases: FAIRLEAD_NETWORK, FAIRLEAD_ADDRESS (with its prefix length, as 10.88.0.2/24),
// FAIRLEAD_GATEWAY, FAIRLEAD_MAC and FAIRLEAD_HOSTNAME for the first lease, the same with _2
// for the second, and so on. Several addresses or gateways of one lease are separated by a
// space. What a lease does not have is an empty variable, so that one inherited from an outer
// container never shows.
//
// FAIRLEAD_SOCKET is the broker's socket: by it and FAIRLEAD_ADDRESS the network service finds
// containers whose leases it has no record of any more. Container.Run sets all of them.
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
	if len(leases) > 0 && leases[0].Broker != "" {
		env = append(env, socket.Variable+"="+leases[0].Broker)
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
