package server

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/internal/watch"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A holder is a session that has asked for a lease. It is gone when the session has ended, its socket is hung up, or the process that opened it has
// exited, whichever is seen first; then all its leases are left at once, and never again.
type holder struct {
	session *session.Session
	once    sync.Once // identifies it

	// Set once, before anybody else sees it:
	socket syscall.RawConn
	handle *process.Handle // which other sessions of the process share
	id     process.ID
	client network.Holder
	err    error // why it cannot be a holder

	// The Server's mutex guards these:
	gone     bool
	onSocket *watch.Watch
	process  *watch.Share
	leases   []*lease
}

// holder returns the holder that a session is, and watches it from the first time on.
func (s *Server) holder(ss *session.Session) (*holder, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, wire.Errorf(wire.Terminating, "the network service is being stopped")
	}
	h := s.holders[ss]
	if h == nil {
		h = &holder{session: ss}
		s.holders[ss] = h
	}
	s.mu.Unlock()
	h.once.Do(func() { s.meet(h) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.gone {
		return nil, h.errLocked()
	}
	return h, nil
}

// errLocked says why a holder that is gone gets no lease.
func (h *holder) errLocked() error {
	if end := h.session.End(); end.Code != "" {
		return end.Err()
	}
	if h.err != nil {
		return h.err
	}
	return wire.Errorf(wire.Invalid, "the process that opened the session has exited")
}

// meet identifies a holder and has it watched.
func (s *Server) meet(h *holder) {
	handle, err := h.identify()
	if err == nil {
		err = s.watchHolder(h, handle)
	}
	if err != nil {
		if _, ours := errors.AsType[*wire.Error](err); ours {
			h.err = err
		} else if !errors.Is(err, process.ErrGone) {
			h.err = wire.Errorf(wire.Unavailable, "cannot watch the session, which has to hold the lease: %v", err)
		}
		s.left(h)
		return
	}
	h.session.OnEnd(func(end wire.End) {
		if end.Origin == wire.Local && end.Code == wire.Terminating {
			s.strand(h)
		} else {
			s.left(h)
		}
	})
}

// identify asks the kernel who is at the other end of the session. Who cannot be written down gets no lease: after a crash of the service nobody could be
// asked whether he lives.
func (h *holder) identify() (*process.Handle, error) {
	var err error
	if h.socket, err = h.session.SyscallConn(); err != nil {
		return nil, err
	}
	cred, err := process.PeerCred(h.socket)
	if err != nil {
		return nil, err
	}
	h.client = network.Holder{PID: cred.PID, UID: cred.UID}
	if cred.PID == 0 {
		return nil, wire.Errorf(wire.Unsupported, "the session was opened in a pid namespace that the network service cannot see into, so it could not find its "+
			"holder again after a crash: open it from the pid namespace of the network service, or from one below that")
	}
	handle, _, err := process.FromPeer(h.socket)
	if err != nil {
		return nil, err
	}
	if h.id, err = identify(handle); err != nil {
		handle.Close()
	}
	return handle, err
}

// identify returns what can be written down about the process of a handle.
func identify(handle *process.Handle) (process.ID, error) {
	id, err := process.Identify(handle.PID())
	if err == nil && handle.Gone() { // the number may have been another's
		err = process.ErrGone
	}
	if err != nil {
		return process.ID{}, fmt.Errorf("identify process %d: %w", handle.PID(), err)
	}
	return id, nil
}

// watchHolder has the kernel tell when a holder is gone. It owns handle.
func (s *Server) watchHolder(h *holder, handle *process.Handle) error {
	gone := func() { s.left(h) }
	shared, err := s.processes.Join(handle, gone)
	if err != nil {
		return err
	}
	onSocket, err := s.watch.Add(h.socket, watch.Socket, gone)
	if err != nil {
		shared.Leave()
		return err
	}
	h.handle = shared.Handle()
	s.mu.Lock()
	h.onSocket, h.process = onSocket, shared
	if h.gone {
		s.forgetHolderLocked(h)
	}
	s.unlock()
	return nil
}

// left takes all leases from a holder that is gone.
func (s *Server) left(h *holder) { s.part(h, s.leaveLocked) }

// strand takes all leases from a holder whose session ends because the service is stopped.
func (s *Server) strand(h *holder) { s.part(h, s.strandLocked) }

func (s *Server) part(h *holder, take func(*lease)) {
	s.mu.Lock()
	defer s.unlock()
	if h.gone {
		return
	}
	h.gone = true
	delete(s.holders, h.session)
	for len(h.leases) > 0 {
		take(h.leases[0])
	}
	s.forgetHolderLocked(h)
}
