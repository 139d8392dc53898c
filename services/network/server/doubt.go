package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const (
	askWait    = 2 * time.Second  // for one answer of the broker to which sessions there were
	askAtMost  = 10 * time.Second // for any answer, where the record is damaged
	retryPause = 500 * time.Millisecond
)

// A doubt is that addresses may be held which the table does not show, because the record of an earlier instance is missing or damaged. While it
// lasts, no address is given out. It lasts until no suspect lives and none is found any more; what cannot be found out counts as held. The Server's
// mutex guards it.
//
// Every start without a record begins with it; a first one finds no suspects and ends it at once.
type doubt struct {
	reason   error         // nil: none yet, this looks like a first start
	looked   chan struct{} // closed when there is a reason, or the doubt is over
	suspects map[*keeper]struct{}
	none     chan struct{} // closed when suspects becomes empty
}

func newDoubt(reason error) *doubt {
	d := &doubt{looked: make(chan struct{}), suspects: map[*keeper]struct{}{}}
	if reason != nil {
		d.because(reason)
	}
	return d
}

// because gives the doubt its reason. The first one stays.
func (d *doubt) because(reason error) {
	if d.reason == nil {
		d.reason = reason
		close(d.looked)
	}
}

// resolve finds the suspects, waits until all are gone, and ends the doubt when no more are found: a suspect may have started others.
func (s *Server) resolve(ctx context.Context, read *reading) {
	named, ids := s.askBroker(ctx, read.reason() != nil), read.suspects
	var said string
	for ctx.Err() == nil {
		none, err := s.look(named, ids)
		if err != nil {
			s.unsure(err)
			if said != err.Error() {
				said = err.Error()
				s.log.Warn("no address is given out: it cannot be found out which processes could hold one", "err", err)
			}
			pause(ctx, retryPause)
			continue
		}
		if none == nil {
			s.endDoubt()
			return
		}
		s.record.renew()
		select {
		case <-none:
			named, ids = nil, nil
		case <-ctx.Done():
		}
	}
}

// look finds the suspects: those that were named or written down, and the containers. It returns a channel that is closed when all are gone, and nil if
// there are none.
func (s *Server) look(named []int, ids []process.ID) (none <-chan struct{}, err error) {
	clients, err := living(named)
	if err != nil {
		return nil, err
	}
	inside, err := containers(s.conf.Socket)
	if err != nil {
		return nil, err
	}
	found := slices.Concat(ids, clients, inside)
	if len(found) == 0 {
		return nil, nil
	}
	return s.suspect(found)
}

// unsure says why it is not known what is held.
func (s *Server) unsure(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubt.because(fmt.Errorf("there is no record of leases in %s, and the processes that could hold one cannot be looked for: %w", s.conf.StateDir, err))
}

// endDoubt gives out again what the table does not show.
func (s *Server) endDoubt() {
	s.mu.Lock()
	if s.doubt.reason == nil {
		close(s.doubt.looked)
	}
	s.doubt = nil
	for _, g := range s.segments {
		s.serveLocked(g)
	}
	s.unlock()
	s.record.renew()
}

// awaitLook waits until it is known whether there is doubt, as a request for an address does.
func (s *Server) awaitLook(ctx context.Context) {
	s.mu.Lock()
	d := s.doubt
	s.mu.Unlock()
	if d == nil {
		return
	}
	timer := time.NewTimer(timeToWait(ctx))
	defer timer.Stop()
	select {
	case <-d.looked:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// askBroker returns the clients of earlier sessions. Where it is known that a record was lost it asks for longer.
func (s *Server) askBroker(ctx context.Context, lost bool) []int {
	if s.conf.Suspects == nil {
		return nil
	}
	for began := time.Now(); ; pause(ctx, retryPause) {
		once, cancel := context.WithTimeout(ctx, askWait)
		pids, err := s.conf.Suspects(once)
		cancel()
		if err == nil {
			return pids
		}
		if !lost || ctx.Err() != nil || time.Since(began) > askAtMost {
			s.log.Warn("cannot ask the broker which processes had sessions: only containers are looked for", "err", err)
			return nil
		}
	}
}

// living returns the processes among pids that live. Whether one has its number since its session was opened cannot be told, for the clock may have been
// set: one that has not is held for a client, which is safe.
func living(pids []int) ([]process.ID, error) {
	var ids []process.ID
	for _, pid := range pids {
		id, err := process.Identify(pid)
		if errors.Is(err, process.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if id.Alive() {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// suspect watches the processes among ids that live. It returns a channel that is closed when none does any more.
func (s *Server) suspect(ids []process.ID) (none <-chan struct{}, err error) {
	keepers, err := s.openKeepers(ids)
	s.mu.Lock()
	d := s.doubt
	d.none = make(chan struct{})
	for _, k := range keepers {
		if err != nil {
			s.releaseLocked(k)
		} else if !k.gone {
			k.suspect = true
			d.suspects[k] = struct{}{}
		}
	}
	none = d.none
	count := len(d.suspects)
	if count == 0 {
		close(d.none)
	} else {
		d.because(fmt.Errorf("there is no record of leases in %s, and processes that could hold one live", s.conf.StateDir))
	}
	reason := d.reason
	s.unlock()
	if count > 0 {
		s.log.Warn(fmt.Sprintf("no address is given out until %d processes that could hold one are gone", count), "err", reason)
	}
	return none, err
}

// openKeepers returns keepers for the processes among ids that live, once for each.
func (s *Server) openKeepers(ids []process.ID) ([]*keeper, error) {
	var keepers []*keeper
	seen := map[process.ID]bool{}
	for _, id := range ids {
		if seen[id] || id.PID == os.Getpid() {
			continue
		}
		seen[id] = true
		k, err := s.openKeeper(id)
		if err != nil {
			return keepers, err
		}
		if k != nil {
			keepers = append(keepers, k)
		}
	}
	return keepers, nil
}

// clearedLocked takes a suspect that is gone off the list.
func (s *Server) clearedLocked(k *keeper) {
	delete(s.doubt.suspects, k)
	if len(s.doubt.suspects) == 0 {
		close(s.doubt.none)
	}
}

// containers returns the processes that live in containers of the broker at path: those whose environment has that path and an address. A process can
// change its environment, and that of another user's may not be read: such ones are not found. The error says that one could not be read that may be one.
func containers(path string) ([]process.ID, error) {
	if path == "" {
		return nil, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("look for containers: %w", err)
	}
	var ids []process.ID
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		id, inside, err := identifyContainer(pid, path)
		switch {
		case errors.Is(err, process.ErrGone), errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH), errors.Is(err, fs.ErrPermission):
		case err != nil:
			return nil, fmt.Errorf("look for containers: %w", err)
		case inside && id.Alive():
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// identifyContainer says who the process pid is, and whether its environment says that it is in a container of the broker at path.
func identifyContainer(pid int, path string) (id process.ID, inside bool, err error) {
	if id, err = process.Identify(pid); err != nil {
		return process.ID{}, false, err
	}
	environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return process.ID{}, false, err
	}
	var address, broker bool
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		name, value, _ := bytes.Cut(v, []byte("="))
		switch string(name) {
		case "FAIRLEAD_ADDRESS":
			address = len(value) > 0
		case socket.Variable:
			broker = filepath.Clean(string(value)) == filepath.Clean(path)
		}
	}
	return id, address && broker, nil
}
