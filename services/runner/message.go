package runner

import (
	"errors"
	"syscall"
)

// The caller and the init talk over one end each of a socketpair, in gob. The caller sends one
// config and then orders; the init answers with reports. End of file tells either that the
// other is gone.

// A config tells the init what to prepare.
type config struct {
	Path       string
	Args       []string
	Dir        string
	ExtraFiles int
	Mode       mode
}

// A mode is how the init holds its processes.
type mode struct {
	// Namespaces: the init is process 1 of a pid namespace; else it is a keeper.
	Namespaces bool
	// User: there is a user namespace too, and the init has capabilities in it to drop.
	User bool
}

// An order is what the caller sends after the config.
type order struct {
	Kind orderKind
	// Env is for orderStart.
	Env []string
	// Signal is for orderSignal.
	Signal syscall.Signal
}

type orderKind int

const (
	orderStart     orderKind = iota + 1 // execute the command
	orderSignal                         // send Signal to the command
	orderTerminate                      // SIGTERM to everything, and wait until all is gone
	orderKill                           // SIGKILL to everything
)

// A report is what the init sends. In the life of an init there are at most three.
type report struct {
	Kind reportKind
	// Step and Errno say what failed, for reportFailed and reportNotStarted.
	Step  string
	Errno syscall.Errno
	// Status is how the command ended, for reportEnded.
	Status syscall.WaitStatus
}

type reportKind int

const (
	reportReady      reportKind = iota + 1 // prepared, and waiting for orderStart
	reportFailed                           // a step of preparing or of starting failed; the init exits
	reportNotStarted                       // the command could not be executed; the init exits
	reportStarted                          // the command runs
	reportEnded                            // the command has ended
)

func errnoOf(err error) syscall.Errno {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return syscall.EIO
}
