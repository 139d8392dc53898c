package server

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
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

// A Suspect is a process that could hold a lease which cannot be read any more.
type Suspect struct {
	// PID is its number.
	PID int
	// OpenedAt is when it opened its session. A process that started later is another one and no suspect. Zero: not known.
	OpenedAt time.Time
}

// A doubt is that addresses may be held which the table does not show, because the record of an earlier instance is missing or damaged. While it
// lasts, no address is given out. It lasts until no suspect lives and none is found any more. The Server's mutex guards it.
//
// Every start without a record begins with it; a first one finds no suspects and ends it at once.
type doubt struct {
	reason   error // nil: none yet, this looks like a first start
	suspects map[*keeper]struct{}
	none     chan struct{} // closed when suspects becomes empty
}

// resolve finds the suspects, waits until all are gone, and ends the doubt when no more are found: a suspect may have started others.
func (s *Server) resolve(ctx context.Context, read *reading) {
	ids := append(s.askBroker(ctx, read.reason() != nil), read.suspects...)
	for ctx.Err() == nil {
		found := append(ids, containers(s.conf.Socket)...)
		if len(found) == 0 {
			s.endDoubt()
			return
		}
		none, err := s.suspect(found)
		if err != nil {
			s.log.Warn("cannot watch the processes that could hold an address", "err", err)
			pause(ctx, retryPause)
			continue
		}
		s.record.renew()
		select {
		case <-none:
			ids = nil
		case <-ctx.Done():
		}
	}
}

// endDoubt gives out again what the table does not show.
func (s *Server) endDoubt() {
	s.mu.Lock()
	s.doubt = nil
	for _, g := range s.segments {
		s.serveLocked(g)
	}
	s.unlock()
	s.record.renew()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// askBroker returns the living clients of earlier sessions. Where it is known that a record was lost it asks for longer.
func (s *Server) askBroker(ctx context.Context, lost bool) []process.ID {
	if s.conf.Suspects == nil {
		return nil
	}
	for began := time.Now(); ; pause(ctx, retryPause) {
		once, cancel := context.WithTimeout(ctx, askWait)
		suspects, err := s.conf.Suspects(once)
		cancel()
		if err == nil {
			return living(suspects)
		}
		if !lost || ctx.Err() != nil || time.Since(began) > askAtMost {
			s.log.Warn("cannot ask the broker which processes had sessions: only containers are looked for", "err", err)
			return nil
		}
	}
}

// living returns the processes among suspects that live, and were there when their sessions were opened.
func living(suspects []Suspect) []process.ID {
	var ids []process.ID
	for _, c := range suspects {
		id, err := process.Identify(c.PID)
		if err == nil && id.Alive() && (c.OpenedAt.IsZero() || startedBefore(id, c.OpenedAt)) {
			ids = append(ids, id)
		}
	}
	return ids
}

// startedBefore reports whether a process started before a moment, give or take a second: wall clocks may be set.
func startedBefore(id process.ID, at time.Time) bool {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return true
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on all that Go runs on, see time(7)
	age := time.Duration(now.Nano()) - time.Duration(id.Start)*tick
	return time.Now().Add(-age).Before(at.Add(time.Second))
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
	} else if d.reason == nil {
		d.reason = fmt.Errorf("there is no record of leases in %s, and containers of an earlier instance live", s.conf.StateDir)
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
// change its environment, and that of another user's may not be read: such ones are not found.
func containers(path string) []process.ID {
	entries, err := os.ReadDir("/proc")
	if err != nil || path == "" {
		return nil
	}
	var ids []process.ID
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		id, err := process.Identify(pid)
		if err == nil && inContainer(pid, path) && id.Alive() {
			ids = append(ids, id)
		}
	}
	return ids
}

// inContainer reports whether the environment of a process says that it is in a container of the broker at path.
func inContainer(pid int, path string) bool {
	environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
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
	return address && broker
}
