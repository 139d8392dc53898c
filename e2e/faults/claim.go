package faults

import (
	"encoding/json"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// A claim is that this process uses some addresses: the lock of a file of the name of each. The kernel lets go of it when the last process that has it open is gone.
type claim struct{ files []*os.File }

// A user is who has a claim, as it is written in the file.
type user struct {
	Who     string     `json:"who"`
	Process process.ID `json:"process,omitzero"` // zero: in a container, which ends before its addresses are free
	Witness process.ID `json:"witness,omitzero"` // has the lock, too
}

// dying is how long the last moments of a process may take, in which its session is gone and its lock is not yet.
const dying = 10 * time.Second

// claim claims addresses that were given to u. It finds those that somebody else uses.
func (p place) claim(u user, addresses []netip.Prefix) claim {
	var c claim
	for _, a := range addresses {
		if f := p.claimOne(u, a.Addr().String()); f != nil {
			c.files = append(c.files, f)
		}
	}
	return c
}

func (p place) claimOne(u user, address string) *os.File {
	f, err := os.OpenFile(p.at("claims", strings.ReplaceAll(address, ":", "-")), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		p.find(machineFault, "%v", err)
		return nil
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		p.dispute(u, address, f)
	}
	text, _ := json.Marshal(u)
	f.Truncate(0)
	f.WriteAt(text, 0)
	return f
}

// dispute waits for the end of a user who may be dying, and finds one who is not.
func (p place) dispute(u user, address string, f *os.File) {
	other := readUser(f)
	witnessed := !other.Witness.IsZero() && other.Witness.Alive()
	deadline := time.Now().Add(dying)
	for unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		if time.Now().After(deadline) {
			p.find(duplicateAddress, "%s was given to %s, and %s uses it (%+v)", address, u.Who, other.Who, other)
			return
		}
		time.Sleep(time.Millisecond)
	}
	switch {
	case other.Who == "": // it had not written yet, and so had not been for long
	case other.Process.IsZero():
		p.find(duplicateAddress, "%s was given to %s while the container of %s lived", address, u.Who, other.Who)
	case witnessed:
		p.find(duplicateAddress, "%s was given to %s while the witness of %s lived: %+v", address, u.Who, other.Who, other)
	case u.Process.IsZero(): // what is outside a container cannot be asked for from within
	case other.Process.Alive() && !exiting(other.Process.PID): // it has let go of the lock in order, and of the lease behind it
		p.find(duplicateAddress, "%s was given to %s while %s used it, who lives: %+v", address, u.Who, other.Who, other)
	}
}

// exiting reports whether a process has begun to exit, before which it does not let go of its files: PF_EXITING of linux/sched.h in the flags of proc_pid_stat(5).
func exiting(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err == nil && flags&4 != 0
}

func readUser(f *os.File) (u user) {
	text := make([]byte, 1024)
	n, _ := f.ReadAt(text, 0)
	json.Unmarshal(text[:n], &u) // whoever has just locked it may not have written yet
	return u
}

// release lets go of the addresses, which must come before the lease is given back. A witness that has the lock keeps it.
func (c *claim) release() {
	for _, f := range c.files {
		f.Close()
	}
	c.files = nil
}
