package server

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/internal/watch"
	"github.com/fairlead-dev/fairlead/wire"
)

// A keeper is a process whose life keeps something from being given out: the addresses of leases, or, as a suspect, all that is not known.
type keeper struct {
	handle *process.Handle
	id     process.ID

	// The Server's mutex guards these:
	watch   *watch.Watch
	leases  []*lease
	suspect bool
	gone    bool // it has exited, or nobody needs it any more
}

// newKeeper has a process watched. The Server owns handle, also when that fails.
func (s *Server) newKeeper(handle *process.Handle, id process.ID) (*keeper, error) {
	k := &keeper{handle: handle, id: id}
	raw, err := handle.SyscallConn()
	var w *watch.Watch
	if err == nil {
		w, err = s.watch.Add(raw, watch.Process, func() { s.exited(k) })
	}
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("watch process %d: %w", id.PID, err)
	}
	s.mu.Lock()
	k.watch = w
	s.mu.Unlock()
	return k, nil
}

// keep makes the life of k keep the lease.
func (l *lease) keep(k *keeper) {
	l.keepers = append(l.keepers, k)
	k.leases = append(k.leases, l)
}

// exited lets go what a process kept.
func (s *Server) exited(k *keeper) {
	s.mu.Lock()
	defer s.unlock()
	if k.gone {
		return
	}
	leases := k.leases
	k.gone, k.leases = true, nil
	s.forgetLocked(k.handle, k.watch)
	for _, l := range leases {
		l.keepers = slices.DeleteFunc(l.keepers, func(other *keeper) bool { return other == k })
		if len(l.keepers) == 0 && !l.stranded && (l.state == dying || l.state == orphaned) {
			s.endLocked(l)
		}
	}
	if k.suspect {
		s.clearedLocked(k)
	}
}

// dropLocked says that k need not keep l any more.
func (s *Server) dropLocked(k *keeper, l *lease) {
	k.leases = slices.DeleteFunc(k.leases, func(other *lease) bool { return other == l })
	s.releaseLocked(k)
}

// releaseLocked lets a keeper go that keeps nothing.
func (s *Server) releaseLocked(k *keeper) {
	if !k.gone && len(k.leases) == 0 && !k.suspect {
		k.gone = true
		s.forgetLocked(k.handle, k.watch)
	}
}

// witness returns a keeper for the process that a client names as a witness: a descendant of the client, so that nobody can keep an address for ever by
// naming a process that is not his own.
func (s *Server) witness(h *holder, pid int) (*keeper, error) {
	if !ownNamespace(h.client.PID) {
		return nil, wire.Errorf(wire.Unsupported, "witness %d: the session was opened in another pid namespace, where numbers mean other processes: "+
			"open it from the pid namespace of the network service", pid)
	}
	handle, err := process.Open(pid)
	if err == nil {
		var k *keeper
		if k, err = s.checkWitness(h, handle); err == nil {
			return k, nil
		}
	}
	if errors.Is(err, process.ErrGone) {
		return nil, wire.Errorf(wire.NotFound, "witness %d: %v", pid, err)
	}
	if _, ours := errors.AsType[*wire.Error](err); ours {
		return nil, err
	}
	return nil, wire.Errorf(wire.Unavailable, "witness %d: %v", pid, err)
}

// checkWitness makes a keeper of handle, which it owns, if it is a descendant of the holder.
func (s *Server) checkWitness(h *holder, handle *process.Handle) (*keeper, error) {
	descends, err := handle.DescendantOf(h.handle)
	switch {
	case err != nil:
	case handle.Gone():
		err = process.ErrGone
	case !descends:
		err = wire.Errorf(wire.NotPermitted, "witness %d is no descendant of process %d, which opened the session", handle.PID(), h.client.PID)
	}
	var id process.ID
	if err == nil {
		id, err = identify(handle)
	}
	if err != nil {
		handle.Close()
		return nil, err
	}
	return s.newKeeper(handle, id)
}

// ownNamespace reports whether the process pid is in the pid namespace of this one, by the number of numbers that it has from here on: see NSpid in
// proc_pid_status(5). Where that is not said, there are no namespaces.
func ownNamespace(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return true // it is gone, or hidden: what else is asked of it fails
	}
	_, rest, found := strings.Cut(string(text), "\nNSpid:")
	numbers, _, _ := strings.Cut(rest, "\n")
	return !found || len(strings.Fields(numbers)) == 1
}
