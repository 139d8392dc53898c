package runner

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
)

// Exit statuses of a program that runs a command, as env(1), timeout(1) and shells use them;
// 69 is EX_UNAVAILABLE of sysexits.h.
const (
	statusLost     = 69
	statusFailed   = 125
	statusNotExec  = 126
	statusNotFound = 127
	statusSignal   = 128
)

// An ExitError says that the command ran and did not end with status 0.
type ExitError struct {
	// Code is the command's exit status, 1 to 255; 0 when a signal ended it.
	Code int
	// Signal is the signal that ended the command, 0 when it exited by itself.
	Signal syscall.Signal
}

func (e *ExitError) Error() string {
	if e.Signal != 0 {
		return fmt.Sprintf("the command was ended by signal %d (%v)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("the command ended with status %d", e.Code)
}

// A StartError says that the command could not be executed; nothing of it has run.
type StartError struct {
	// Path is the file that was to be executed.
	Path string
	// Err says why not; often a syscall.Errno.
	Err error
}

func (e *StartError) Error() string { return fmt.Sprintf("execute %s: %v", e.Path, e.Err) }

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// A LostError says that the container was ended, or not begun, because a lease was over.
type LostError struct {
	// Network is the network of the lease.
	Network string
	// Err says why the lease is over; nil if the lease did not say.
	Err error
}

func (e *LostError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("the lease on network %s is over", e.Network)
	}
	return fmt.Sprintf("the lease on network %s is over: %v", e.Network, e.Err)
}

// Unwrap returns the cause.
func (e *LostError) Unwrap() error { return e.Err }

// A WitnessError says that the container was not run because the network service did not
// take its process as the witness of a lease.
type WitnessError struct {
	// Network is the network of the lease.
	Network string
	// Err says why not.
	Err error
}

func (e *WitnessError) Error() string {
	return fmt.Sprintf("add the container as a witness of the lease on network %s: %v", e.Network, e.Err)
}

// Unwrap returns the cause.
func (e *WitnessError) Unwrap() error { return e.Err }

// A ContainError says that the system does not permit the namespaces of a container.
type ContainError struct {
	// Step is what was attempted.
	Step string
	// Err says why it failed; it wraps a syscall.Errno.
	Err error
}

func (e *ContainError) Error() string {
	return fmt.Sprintf("contain the command: %s: %v; %s", e.Step, e.Err, e.hint())
}

// Unwrap returns the cause.
func (e *ContainError) Unwrap() error { return e.Err }

func (e *ContainError) hint() string {
	why := "allow user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0 or kernel.unprivileged_userns_clone=1, " +
		"or the seccomp profile of an outer container) or run as root"
	switch {
	case errors.Is(e.Err, syscall.ENOSPC), errors.Is(e.Err, syscall.EUSERS):
		why = "raise the sysctls user.max_user_namespaces, user.max_pid_namespaces and user.max_mnt_namespaces"
	case errors.Is(e.Err, syscall.EINVAL), errors.Is(e.Err, syscall.ENOSYS):
		why = "use a kernel with CONFIG_PID_NS and CONFIG_USER_NS"
	}
	return why + `, or accept a keeper with containment "best"`
}

// refused tells a system that does not permit namespaces from one that is short of something.
func refused(err error) bool {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return false
	}
	switch errno {
	case syscall.EPERM, syscall.EACCES, syscall.ENOSPC, syscall.EUSERS, syscall.EINVAL, syscall.ENOSYS:
		return true
	}
	return false
}

// ExitStatus returns the exit status by which a program should tell err, an error of this
// package, to its own caller: 0 for nil, 69 (EX_UNAVAILABLE) for a lost lease, the command's
// own status, 128 and the signal's number if a signal ended it, 127 if it was not found, 126 if
// it could not be executed, and 125 for everything else.
func ExitStatus(err error) int {
	if err == nil {
		return 0
	}
	if _, ok := errors.AsType[*LostError](err); ok {
		return statusLost
	}
	if e, ok := errors.AsType[*ExitError](err); ok {
		if e.Signal != 0 {
			return statusSignal + int(e.Signal)
		}
		return e.Code
	}
	if e, ok := errors.AsType[*StartError](err); ok {
		if errors.Is(e.Err, syscall.ENOENT) || errors.Is(e.Err, exec.ErrNotFound) {
			return statusNotFound
		}
		return statusNotExec
	}
	return statusFailed
}

// exitError returns how the command ended as an error, nil for status 0.
func exitError(status syscall.WaitStatus) error {
	switch {
	case status.Signaled():
		return &ExitError{Signal: status.Signal()}
	case status.ExitStatus() != 0:
		return &ExitError{Code: status.ExitStatus()}
	}
	return nil
}
