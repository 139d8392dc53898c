package server

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/fairlead-dev/fairlead/internal/netns"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/internal/watch"
	"github.com/fairlead-dev/fairlead/wire"
)

// A keeper is a process, or a network namespace, whose life keeps something from being given out: the addresses of leases, or, as a suspect, all that is not
// known.
type keeper struct {
	handle *process.Handle
	id     process.ID // zero for a namespace
	space  space      // zero for a process

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

// same reports whether both are one process or namespace. A namespace may have the inode of one that is gone and whose end is not heard of yet, but never its number.
func (k *keeper) same(other *keeper) bool { return k.id == other.id && k.space == other.space }

// String names what keeps.
func (k *keeper) String() string {
	if k.space != (space{}) {
		return fmt.Sprintf("network namespace %d", k.space.Inode)
	}
	return fmt.Sprintf("process %d", k.id.PID)
}

// exited lets go what a process or a namespace kept.
func (s *Server) exited(k *keeper) {
	s.mu.Lock()
	defer s.unlock()
	s.exitedLocked(k)
}

func (s *Server) exitedLocked(k *keeper) {
	if k.gone {
		return
	}
	leases := k.leases
	k.leases = nil
	s.retireLocked(k)
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
		s.retireLocked(k)
	}
}

// retireLocked ends the watch of a keeper.
func (s *Server) retireLocked(k *keeper) {
	k.gone = true
	s.forgetLocked(unneeded{handle: k.handle, watch: k.watch})
	if k.space != (space{}) {
		s.spaces.forget(k)
	}
}

// witness returns a keeper for what a client sends as a witness: the pidfd of a descendant of the client, or a network namespace of its own, so that nobody can
// keep an address for ever by what is not his. It owns file, also when it fails.
func (s *Server) witness(h *holder, file *os.File) (*keeper, error) {
	if id, err := netns.Identify(file); err == nil {
		defer file.Close()
		return s.spaceWitness(h, file, id)
	}
	handle, err := process.FromFile(file)
	if err != nil {
		file.Close()
	} else {
		var k *keeper
		if k, err = s.checkWitness(h, handle); err == nil {
			return k, nil
		}
	}
	switch _, ours := errors.AsType[*wire.Error](err); {
	case ours:
		return nil, err
	case errors.Is(err, process.ErrNotPidfd):
		return nil, wire.Errorf(wire.Malformed, "witness: %v", err)
	case errors.Is(err, process.ErrGone):
		return nil, wire.Errorf(wire.NotFound, "the witness has exited")
	}
	return nil, wire.Errorf(wire.Unavailable, "witness: %v", err)
}

// checkWitness makes a keeper of handle, which it owns, if it is a living descendant of the holder.
func (s *Server) checkWitness(h *holder, handle *process.Handle) (*keeper, error) {
	err := descends(h, handle)
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

// descends returns nil if the process of handle lives and descends from the holder.
func descends(h *holder, handle *process.Handle) error {
	switch {
	case handle.Gone():
		return process.ErrGone
	case handle.PID() == 0: // then it is below no process that has a number here
		return wire.Errorf(wire.NotPermitted, "the witness is in a pid namespace that the network service cannot see into: it is no descendant of process %d, "+
			"which opened the session", h.client.PID)
	}
	child, err := handle.DescendantOf(h.handle)
	switch {
	case err != nil || child:
		return err
	case handle.Gone():
		return process.ErrGone
	}
	return wire.Errorf(wire.NotPermitted, "witness %d is no descendant of process %d, which opened the session", handle.PID(), h.client.PID)
}
