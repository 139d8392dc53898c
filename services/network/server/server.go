// Package server is the network service: it leases the addresses of its networks to sessions, and takes them back when these are gone.
//
// What is leased is one table in memory, under one mutex. Whether a holder lives is asked of the kernel, at the moment when it matters. The record on
// disk is for the next instance only: what it needs to know after a crash of this one. Where that is missing or damaged, no address that it does not
// show is given out until the processes that could hold one are gone.
//
// Where to read on:
//
//	networks.go   what a network is, and which rules it must keep (rules.go); limits.go, rights.go
//	segment.go    a network with what is leased of it: a segment, and its families of addresses
//	lease.go      a lease and its states
//	allocate.go   a request becomes a wish (wish.go), which is fulfilled, waits or meets an obstacle (refusal.go); reclaim.go
//	holder.go     a session that has leases, and how its end is seen
//	keeper.go     what keeps a lease beside its session: processes, and namespaces (space.go)
//	methods.go    all other requests; inspect.go, watch.go, reload.go; facts.go
//	record.go     the record on disk, stored through memory (sheet.go), written anew (rewrite.go) by a walk over the table (walk.go)
//	restore.go    the next instance reads it (reading.go, entry.go), or is in doubt (doubt.go)
package server

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/internal/netns"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/internal/ring"
	"github.com/fairlead-dev/fairlead/internal/watch"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A Config says what a Server leases.
type Config struct {
	// Networks are what it leases addresses of; see CheckNetworks.
	Networks []Network
	// Limits bound how many leases there may be.
	Limits Limits
	// StateDir is the folder of the record, which is made if it is not there. No two Servers may have the same.
	StateDir string
	// Socket is the path of the broker's socket. A container knows it as FAIRLEAD_SOCKET: it is by this that the containers of an earlier instance are
	// found whose leases cannot be read. Empty: none is found.
	Socket string
	// Load reads the networks and limits anew, for network.MethodReload, which tells its error to the caller; nil: there is nothing to read. One call is made at a time.
	Load func() ([]Network, Limits, error)
	// Suspects returns the numbers of the processes that were clients of sessions of the instances before this one, open or closed, as far as the broker
	// knows. It is called where the record of an earlier instance is missing or damaged, and at a first start. Nil: there are none.
	Suspects func(context.Context) ([]int, error)
	// Logger is told of faults, and of what is kept from being given out; nil: nobody is.
	Logger *slog.Logger
}

// A Server is the network service. It must be closed.
type Server struct {
	conf      Config
	log       *slog.Logger
	uid       uint32 // that it runs as
	watch     *watch.Set
	processes *watch.Processes // the holders'
	news      *netns.News      // nil: namespaces are not watched
	home      netns.ID         // the network namespace that this service is in
	record    *record
	began     time.Time
	stop      context.CancelFunc
	own       sync.WaitGroup

	counters *counters

	changed chan struct{} // sent to when a session is to be told what it holds

	renewing sync.Mutex // what is read last is applied last

	mu       sync.Mutex
	closed   bool
	segments map[string]*segment
	limits   Limits
	leases   map[string]*lease
	walks    map[*walk]struct{} // that are under way
	copied   walk               // by which the record is written anew
	byUID    map[uint32]int     // how many leases a user has
	holders  map[*session.Session]*holder
	doubt    *doubt // nil: all that is held is known
	spaces   spaces
	unneeded []unneeded
	feed     *ring.Ring[*network.Change] // for those who watch
	untold   map[*holder]struct{}        // what they hold has changed
}

// unneeded is what is let go once the mutex is.
type unneeded struct {
	handle  *process.Handle
	watch   *watch.Watch
	process *watch.Share
}

// New reads the record of the instance before, and returns a Server that knows what is held still. It fails where the networks cannot be served
// together, or the record cannot be written. A record that is missing or damaged is no failure: see the package.
func New(c Config) (*Server, error) {
	if err := CheckNetworks(c.Networks); err != nil {
		return nil, err
	}
	s := &Server{
		conf: c, log: c.Logger, uid: uint32(os.Geteuid()), began: time.Now(), limits: c.Limits.withDefaults(),
		segments: map[string]*segment{}, leases: map[string]*lease{}, byUID: map[uint32]int{}, holders: map[*session.Session]*holder{},
		changed: make(chan struct{}, 1), untold: map[*holder]struct{}{},
		spaces: spaces{}, walks: map[*walk]struct{}{}, counters: newCounters(c.Networks), feed: ring.New[*network.Change](keptChanges),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for _, n := range c.Networks {
		g, err := newSegment(n)
		if err != nil {
			return nil, err
		}
		s.segments[n.Name] = g
	}
	var err error
	if s.watch, err = watch.New(); err != nil {
		return nil, err
	}
	s.processes = watch.NewProcesses(s.watch)
	if err := s.begin(); err != nil {
		s.watch.Close()
		s.closeNews()
		s.letGo()
		return nil, err
	}
	return s, nil
}

// begin takes over what an earlier instance has left, and begins a record of this one's own.
func (s *Server) begin() error {
	self, err := process.Identify(os.Getpid())
	if err != nil {
		return err
	}
	read, err := readRecord(s.conf.StateDir, self.Boot)
	if err != nil {
		return err
	}
	s.record = newRecord(s.conf.StateDir, self.Boot, s, s.log)
	if read.version > 0 {
		if err := os.Rename(s.record.path(), aside(s.record.path(), read.version)); err != nil {
			return fmt.Errorf("set the record of leases aside, which is of version %d: %w", read.version, err)
		}
	}
	s.listen()
	if err := s.restore(read); err != nil {
		return err
	}
	if err := s.record.open(); err != nil {
		return err
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.own.Go(func() { s.record.tend(ctx) })
	s.own.Go(func() { s.tellFacts(ctx) })
	if s.news != nil {
		s.own.Go(func() { s.hear(ctx) })
	}
	if s.doubt != nil {
		s.own.Go(func() { s.resolve(ctx, read) })
	}
	return nil
}

// Close takes no more requests, writes what is left to write, and lets everything go. What is held stays in the record for the next instance. The sessions
// should have ended before.
func (s *Server) Close() error {
	s.mu.Lock()
	twice := s.closed
	s.closed = true
	for _, g := range s.segments {
		s.serveLocked(g) // nobody waits any longer
	}
	s.unlock()
	if twice {
		return nil
	}
	s.stop()
	s.closeNews()
	s.own.Wait()
	err := s.watch.Close()
	s.letGo()
	return err
}

// letGo closes what the table holds on to, when no callback comes any more.
func (s *Server) letGo() {
	s.mu.Lock()
	defer s.unlockUnrecorded()
	for _, h := range s.holders {
		h.gone = true
		s.forgetHolderLocked(h)
	}
	for _, l := range s.leases {
		for _, k := range l.keepers {
			s.forgetLocked(unneeded{handle: k.handle})
		}
	}
	if s.doubt != nil {
		for k := range s.doubt.suspects {
			s.forgetLocked(unneeded{handle: k.handle})
		}
	}
}

// forgetLocked has something be let go by unlock.
func (s *Server) forgetLocked(u unneeded) { s.unneeded = append(s.unneeded, u) }

// forgetHolderLocked has what a holder is watched by be let go.
func (s *Server) forgetHolderLocked(h *holder) {
	s.forgetLocked(unneeded{watch: h.onSocket, process: h.process})
	h.onSocket, h.process = nil, nil
}

// unlock releases the mutex, and then lets go what is no longer needed and has what is over recorded soon.
func (s *Server) unlock() {
	s.unlockUnrecorded()
	s.record.hurry()
}

// unlockUnrecorded is unlock for who has what is over recorded himself.
func (s *Server) unlockUnrecorded() {
	over := s.unneeded
	s.unneeded = nil
	s.mu.Unlock()
	for _, u := range over {
		if u.watch != nil {
			s.watch.Remove(u.watch)
		}
		if u.process != nil {
			u.process.Leave()
		}
		u.handle.Close()
	}
}

// segmentLocked returns the network that a request names.
func (s *Server) segmentLocked(name string) (*segment, error) {
	if name == "" {
		name = network.DefaultNetwork
	}
	if g := s.segments[name]; g != nil {
		return g, nil
	}
	return nil, unknownNetwork(name, s.segments)
}

// Mux returns the methods of network.Endpoint.
func (s *Server) Mux() *services.Mux {
	mux := services.NewMux()
	services.Handle(mux, network.MethodAllocate, s.allocate)
	services.Handle(mux, network.MethodRelease, s.release)
	services.Handle(mux, network.MethodWitness, s.addWitness)
	services.HandleOneWay(mux, network.MethodWithdraw, s.withdraw)
	services.Handle(mux, network.MethodLeases, s.list)
	services.Handle(mux, network.MethodLookup, s.lookup)
	services.Handle(mux, network.MethodNetworks, s.networks)
	services.Handle(mux, network.MethodEvict, s.evict)
	services.Handle(mux, network.MethodInspect, s.inspect)
	services.HandleStreaming(mux, network.MethodWatch, s.watchLeases)
	services.Handle(mux, network.MethodReload, s.reload)
	services.Handle(mux, network.MethodCounters, s.count)
	describe(mux)
	return mux
}
