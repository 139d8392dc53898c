package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/netns"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/wire"
)

// A space is what is written down about a network namespace that is a witness. Nothing of it is kept open.
type space struct {
	netns.ID
	Unique uint64   `json:"unique,omitempty"` // no other ever has it; 0: the kernel tells none
	Number int32    `json:"nsid"`             // by which the kernel tells its end, to
	Home   netns.ID `json:"home"`             // this one, in which the service was
}

// is reports whether the namespace in file is this one, as far as can be told.
func (sp space) is(file *os.File) bool {
	id, err := netns.Identify(file)
	unique := netns.Unique(file)
	return err != nil || id == sp.ID && (unique == sp.Unique || unique == 0 || sp.Unique == 0)
}

// spaces are the keepers that are namespaces, by their numbers. The Server's mutex guards them.
type spaces map[int32][]*keeper

func (m spaces) forget(k *keeper) {
	number := k.space.Number
	m[number] = slices.DeleteFunc(m[number], func(other *keeper) bool { return other == k })
	if len(m[number]) == 0 {
		delete(m, number)
	}
}

// listen begins to hear of namespaces, if that can be.
func (s *Server) listen() {
	var news *netns.News
	var err error
	if s.home, err = netns.OfProcess(os.Getpid()); err == nil {
		news, err = netns.Listen()
	}
	if err != nil {
		s.log.Warn("no network namespace can be a witness", "err", err)
		return
	}
	s.news = news
}

func (s *Server) closeNews() {
	if s.news != nil {
		s.news.Close()
	}
}

// hear lets go what namespaces kept that are gone, until ctx ends.
func (s *Server) hear(ctx context.Context) {
	for {
		gone, err := s.news.Next()
		switch {
		case ctx.Err() != nil || errors.Is(err, os.ErrClosed):
			return
		case err != nil: // some news were lost
			s.log.Warn("news of network namespaces were lost: all are asked for", "err", err)
			s.askSpaces(true)
			if !errors.Is(err, unix.ENOBUFS) {
				pause(ctx, retryPause)
			}
		case len(gone) > 0:
			s.spacesGone(gone)
		}
	}
}

// spacesGone lets go what the namespaces of these numbers kept. A number that exists is another's by now, or was when the news left.
func (s *Server) spacesGone(numbers []int32) {
	for _, number := range numbers {
		s.askSpace(number, true)
	}
}

// askSpace asks the kernel for one number. One that it has given itself may be another namespace's since: closely asked, this is looked for. Where who has the number
// is not found, its keepers stay.
func (s *Server) askSpace(number int32, closely bool) {
	s.mu.Lock()
	asked := slices.DeleteFunc(slices.Clone(s.spaces[number]), func(k *keeper) bool { return k.space.Home != s.home }) // those that come meanwhile are not meant
	s.mu.Unlock()
	if len(asked) == 0 {
		return
	}
	exists, err := netns.Exists(number)
	if err != nil {
		return
	}
	if exists {
		if !closely || number >= netns.FirstOwn {
			return
		}
		file := netns.Find(number)
		if file == nil {
			return
		}
		asked = slices.DeleteFunc(asked, func(k *keeper) bool { return k.space.is(file) })
		file.Close()
	}
	s.mu.Lock()
	defer s.unlock()
	for _, k := range asked {
		s.exitedLocked(k)
	}
}

// askSpaces asks the kernel for all namespaces, as askSpace does.
func (s *Server) askSpaces(closely bool) {
	s.mu.Lock()
	numbers := slices.Collect(maps.Keys(s.spaces))
	s.mu.Unlock()
	for _, number := range numbers {
		s.askSpace(number, closely)
	}
}

// ask asks the kernel what is gone. The error says that the Server is closed.
func (s *Server) ask() error {
	err := s.watch.Ask()
	if err == nil {
		s.askSpaces(false)
	}
	return err
}

// spaceWitness returns a keeper for a namespace that is the holder's to name. The caller closes file, which has kept the namespace alive until the kernel
// was told to tell its end.
func (s *Server) spaceWitness(h *holder, file *os.File, id netns.ID) (*keeper, error) {
	if s.news == nil {
		return nil, wire.Errorf(wire.Unsupported, "the network service cannot hear of network namespaces: its log says why")
	}
	if err := s.mayName(h, file, id); err != nil {
		return nil, err
	}
	number, err := netns.Number(file)
	switch {
	case errors.Is(err, unix.EPERM):
		return nil, wire.Errorf(wire.Unsupported, "a network namespace as a witness needs CAP_NET_ADMIN in the network service: give a pidfd, or run the service as root")
	case err != nil:
		return nil, wire.Errorf(wire.Unavailable, "witness: %v", err)
	}
	return s.newSpace(space{ID: id, Unique: netns.Unique(file), Number: number, Home: s.home}), nil
}

// newSpace has a namespace watched.
func (s *Server) newSpace(sp space) *keeper {
	k := &keeper{space: sp}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spaces[sp.Number] = append(s.spaces[sp.Number], k)
	return k
}

// restoreSpace returns a keeper for a namespace that was written down, or nil if it is gone. While it cannot be known whether it is, it counts as alive.
func (s *Server) restoreSpace(sp space) *keeper {
	k := s.newSpace(sp)
	if sp.Home != s.home {
		s.log.Warn(fmt.Sprintf("network namespace %d was numbered in another network namespace than this service is in: its leases are kept until they are released",
			sp.Inode))
		return k
	}
	s.askSpace(sp.Number, true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.gone {
		return nil
	}
	return k
}

// mayName returns nil if a namespace may be a witness of the holder's: it must end with what the holder, or its user, has made.
func (s *Server) mayName(h *holder, file *os.File, id netns.ID) error {
	for _, pid := range []int{os.Getpid(), 1} {
		if of, err := netns.OfProcess(pid); err == nil && of == id {
			return wire.Errorf(wire.NotPermitted, "the witness is the network namespace of process %d, which would keep the lease for ever", pid)
		}
	}
	uid := h.client.UID
	if uid == 0 || uid == s.uid {
		return nil
	}
	if owner, err := netns.Owner(file); err == nil && owner == uid {
		return nil
	}
	if own, err := netns.OfProcess(h.client.PID); err == nil && own != id {
		family, err := process.Descendants(h.client.PID)
		if err != nil {
			return wire.Errorf(wire.Unavailable, "witness: %v", err)
		}
		for _, child := range family {
			if of, err := netns.OfProcess(child.PID); err == nil && of == id && !h.handle.Gone() {
				return nil
			}
		}
	}
	return wire.Errorf(wire.NotPermitted, "the witness is a network namespace that uid %d has not made, and that no descendant of process %d, which opened the session, is in",
		uid, h.client.PID)
}
