package watch

import (
	"fmt"
	"sync"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// A Processes watches processes for any number of askers, with one descriptor and one watch of a Set for each process, however many ask for it.
// All methods may be called at any time by any goroutine, also by a callback.
type Processes struct {
	set *Set

	mu    sync.Mutex
	byPID map[int]*watched // those that are not known to be gone
}

// A watched process is one that somebody has asked for. The mutex of its Processes guards it.
type watched struct {
	handle *process.Handle
	watch  *Watch
	askers map[*Share]struct{}
}

// A Share is what one asker has of the watch of a process. It must be left.
type Share struct {
	of     *Processes
	shared *watched // the same for all that ask for this process
	gone   func()
	told   bool // gone runs, or has run; the mutex of its Processes guards it
}

// NewProcesses returns a Processes that watches by set.
func NewProcesses(set *Set) *Processes { return &Processes{set: set, byPID: map[int]*watched{}} }

// Join watches the process of handle, which it owns from now on, also when it fails, and calls gone once when that has exited: see Set.Add for when, and
// for the errors.
func (p *Processes) Join(handle *process.Handle, gone func()) (*Share, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	asker := &Share{of: p, gone: gone}
	if known := p.byPID[handle.PID()]; known != nil && known.handle.Same(handle) {
		handle.Close()
		asker.shared = known
		known.askers[asker] = struct{}{}
		return asker, nil
	}
	asker.shared = &watched{handle: handle, askers: map[*Share]struct{}{asker: {}}}
	raw, err := handle.SyscallConn()
	if err == nil {
		asker.shared.watch, err = p.set.Add(raw, Process, func() { p.exited(asker.shared) })
	}
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("watch process %d: %w", handle.PID(), err)
	}
	p.byPID[handle.PID()] = asker.shared
	return asker, nil
}

// Handle returns the handle on the process, which is good until Leave, and must not be closed.
func (a *Share) Handle() *process.Handle { return a.shared.handle }

// Leave ends the watch for this asker. It returns true if the callback has not run and never will, as Set.Remove does. Only the first call counts.
func (a *Share) Leave() bool {
	p, w := a.of, a.shared
	p.mu.Lock()
	_, asks := w.askers[a]
	delete(w.askers, a)
	last := asks && len(w.askers) == 0
	if last && p.byPID[w.handle.PID()] == w {
		delete(p.byPID, w.handle.PID())
	}
	told := a.told
	p.mu.Unlock()
	if last {
		p.set.Remove(w.watch)
		w.handle.Close()
	}
	return asks && !told
}

// exited tells all who have asked for a process. Who asks from then on has a watch of his own, which fires at once.
func (p *Processes) exited(w *watched) {
	p.mu.Lock()
	if p.byPID[w.handle.PID()] == w {
		delete(p.byPID, w.handle.PID())
	}
	var all []*Share
	for a := range w.askers {
		a.told = true
		all = append(all, a)
	}
	p.mu.Unlock()
	for _, a := range all {
		a.gone()
	}
}
