package keeper

import (
	"fmt"
	"strings"
	"syscall"
)

// An Outcome is how a program has ended.
type Outcome struct {
	// Known is false where the kernel did not tell: the rest is zero then.
	Known bool
	// Code is the exit status, 0 to 255. It is 0 for a program that a signal has ended.
	Code int
	// Signal is the signal that has ended the program, or 0.
	Signal syscall.Signal
	// Core reports whether the program left a core dump.
	Core bool
	// Stderr are the last lines that the program wrote to its standard error: at most 20, and 4 KiB. They are as the program wrote them, so
	// escape what is shown to people. An adopted program has none.
	Stderr []string
}

func outcomeOf(status syscall.WaitStatus, stderr []string) Outcome {
	o := Outcome{Known: true, Stderr: stderr}
	if status.Signaled() {
		o.Signal, o.Core = status.Signal(), status.CoreDump()
	} else {
		o.Code = status.ExitStatus()
	}
	return o
}

// String returns "exit status 3", "signal: killed" or "unknown".
func (o Outcome) String() string {
	switch {
	case !o.Known:
		return "unknown"
	case o.Signal == 0:
		return fmt.Sprintf("exit status %d", o.Code)
	case o.Core:
		return fmt.Sprintf("signal: %v (core dumped)", o.Signal)
	}
	return fmt.Sprintf("signal: %v", o.Signal)
}

// A StartError says at which step the start of a program failed. Nothing of the program has run.
type StartError struct {
	// Step is what was attempted: "execute", "change to the folder".
	Step string
	// Path is the file or folder that it was attempted with, or empty.
	Path string
	// Errno is the kernel's answer.
	Errno syscall.Errno
}

func (e *StartError) Error() string {
	return fmt.Sprintf("%s: %v", strings.TrimSpace(e.Step+" "+e.Path), e.Errno)
}

// Unwrap returns the Errno.
func (e *StartError) Unwrap() error { return e.Errno }
