// Package process says who a process is, and whether it lives.
//
// An ID is what can be written down about a process. A Handle holds on to one process, whatever becomes of its
// number. Everything in /proc is read by number, so it is believed only while a handle says that the process
// still has it.
//
// The /proc of the caller's own pid namespace must be mounted. Where it hides the processes of others
// (hidepid, see proc(5)), these look gone to Identify and Alive.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// ErrGone says that the process has exited, or that its number belongs to another one by now.
var ErrGone = errors.New("process is gone")

// An ID tells one process from all others that ever ran on this machine.
// It may be written to a file and compared after a restart. The zero ID is no process.
type ID struct {
	// PID is the number in the caller's pid namespace.
	PID int `json:"pid"`
	// Start is when the process started, in clock ticks after boot: field 22 of /proc/PID/stat, see proc_pid_stat(5).
	Start uint64 `json:"start"`
	// Boot is the boot that it ran in, as /proc/sys/kernel/random/boot_id has it.
	Boot string `json:"boot"`
}

// Identify returns the ID of the process that has the number pid now.
// A process that has exited but was not waited for has an ID still. The error wraps ErrGone if there is none.
func Identify(pid int) (ID, error) {
	boot, err := bootID()
	if err != nil {
		return ID{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	st, err := readStat(pid)
	if err != nil {
		return ID{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return ID{PID: pid, Start: st.start, Boot: boot}, nil
}

// IsZero reports whether id names no process. Package json asks it for the option omitzero.
func (id ID) IsZero() bool { return id == ID{} }

// Alive reports whether the process still runs. One that has exited is gone, also before it was waited for.
// Where /proc cannot be read, for want of descriptors for example, it answers true: nothing may be
// taken from a process for a failure of ours.
func (id ID) Alive() bool {
	if id.PID <= 0 {
		return false
	}
	boot, err := bootID()
	if err != nil {
		return true
	}
	if boot != id.Boot {
		return false
	}
	st, err := readStat(id.PID)
	if err != nil {
		return !errors.Is(err, ErrGone)
	}
	return st.start == id.Start && !st.exited()
}

// bootCache holds the boot's ID once it was read. A failure is not kept.
var bootCache atomic.Pointer[string]

func bootID() (string, error) {
	if boot := bootCache.Load(); boot != nil {
		return *boot, nil
	}
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot's id: %w", err)
	}
	boot := strings.TrimSpace(string(text))
	bootCache.Store(&boot)
	return boot, nil
}

// A stat is what this package needs of /proc/PID/stat.
type stat struct {
	state   byte
	parent  int
	threads int
	start   uint64
}

// exited reports whether all of the process has ended. A first thread that ended before the others shows as a
// zombie too, while the process runs on: then more than one thread is counted.
func (s stat) exited() bool {
	return s.state == 'X' || s.state == 'Z' && s.threads <= 1
}

// readStat reads /proc/PID/stat. The error is ErrGone if no process has the number.
func readStat(pid int) (stat, error) {
	if pid <= 0 {
		return stat{}, fmt.Errorf("no process has the number %d", pid)
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if vanished(err) {
		return stat{}, ErrGone
	}
	if err != nil {
		return stat{}, err
	}
	return parseStat(text)
}

// parseStat takes the fields after the program's name, which may itself hold spaces and parentheses.
func parseStat(text []byte) (stat, error) {
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("malformed stat: %d fields after the name, expected 20 or more", len(fields))
	}
	// These are fields 4, 20 and 22 of proc_pid_stat(5); the state is field 3.
	parent, err1 := strconv.Atoi(fields[1])
	threads, err2 := strconv.Atoi(fields[17])
	start, err3 := strconv.ParseUint(fields[19], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return stat{}, fmt.Errorf("malformed stat: %w", err)
	}
	return stat{state: fields[0][0], parent: parent, threads: threads, start: start}, nil
}

// vanished reports whether err, of a file in /proc/PID, says that the process is no more: it was
// so before the open (ENOENT) or before the read (ESRCH).
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}
