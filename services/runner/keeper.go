package runner

import (
	"syscall"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// setUpKeeper makes this process adopt all its orphaned descendants. On failure it says at
// which step.
func setUpKeeper() (step string, err error) {
	nameProcess()
	return process.AdoptOrphans()
}

// signalFamily sends sig to all descendants of this process. SIGKILL is for a caller that
// repeats it.
func signalFamily(sig syscall.Signal) { process.SignalDescendants(sig) }
