package server

import (
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
)

// docs say of each method of network.Endpoint what it does.
var docs = map[string]string{
	network.MethodAllocate: "leases an address, a MAC and maybe a hostname to the session",
	network.MethodRelease:  "gives a lease of the session back",
	network.MethodWitness:  "adds a process that a lease of the session waits for",
	network.MethodWithdraw: "gives the lease of a call back whose reply did not come",
	network.MethodLeases:   "the leases that the caller may see, a page at a time",
	network.MethodLookup:   "the lease that has a hostname",
	network.MethodNetworks: "the networks, and how full they are",
	network.MethodEvict:    "ends a lease that no session holds, whatever keeps it",
	network.MethodInspect:  "one lease, by its id, an address or a hostname",
	network.MethodWatch:    "the leases that the caller may see, and then each change",
	network.MethodReload:   "has the service read its networks anew",
	network.MethodCounters: "what the service has done since it was started, for monitoring",
}

// describe adds to each method what it does.
func describe(mux *services.Mux) {
	for name, text := range docs {
		services.Doc(mux, name, text)
	}
}
