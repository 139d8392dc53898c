package faults

import (
	"github.com/fairlead-dev/fairlead/wire"
)

// What checks look at, for tests.
type (
	Observation = observation
	Holding     = holding
	Proc        = proc
	Counts      = counts
)

// The kinds of processes.
const (
	Brokerd  = brokerd
	Network  = network
	Instance = instance
	Keeper   = keeper
	Crowd    = crowd
	Runtime  = runtimes
	Init     = initial
	Resident = residents
	Witness  = witnesses
)

// The checks.
const (
	DuplicateAddress  = duplicateAddress
	DuplicateInstance = duplicateInstance
	Twice             = twice
	NotExecuted       = notExecuted
	NotSent           = notSent
	SessionTable      = sessionTable
	LeaseTable        = leaseTable
	ServiceTable      = serviceTable
	LeakedDescriptor  = leakedDescriptor
	LeakedGoroutine   = leakedGoroutine
	LeakedProcess     = leakedProcess
	LeakedFile        = leakedFile
	Disorder          = disorder
	WrongReply        = wrongReply
	OpenDescriptor    = openDescriptor
)

// Lies are what Config.Break may be, each with the check that must tell.
var Lies = map[string]string{
	lieTwice: twice, lieNever: notExecuted, lieOrder: disorder, lieReply: wrongReply, lieDescriptor: openDescriptor, lieGoroutine: leakedGoroutine, lieSquat: duplicateAddress,
}

// Check returns the checks that an observation does not pass.
func Check(o Observation, base Counts, files []string) []string { return names(o.check(base, files)) }

// CheckCall returns the checks that a call does not pass which was executed so often, and whose client was told a code, and whether it had been sent.
func CheckCall(executed int, code wire.Code, sent bool) []string {
	counts := map[uint64]int{}
	if executed > 0 {
		counts[1] = executed
	}
	return names(checkLedgers(counts, []outcome{{ID: 1, Act: callAct, Code: code, Sent: sent}}))
}

func names(all []Finding) (list []string) {
	for _, f := range all {
		list = append(list, f.Check)
	}
	return list
}
