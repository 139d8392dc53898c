package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker/keeper"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/wire"
)

// A life is one instance of a service, from the decision to have it until the last of its processes is gone. Most are started, under a keeper. Some are adopted
// from an earlier broker, with theirs. Some the broker only learns of, as one that was started by hand.
//
//	beginning ── the keeper has executed the program ──▶ starting ── registered ──▶ running ⇄ control lost
//	    │                                                   │                         │
//	    └── failed ──▶ over ◀── ended, or killed in time ───┴──── ended, stopped ─────┘
type life struct {
	s       *service
	def     servicefile.Service // what it was started by
	begun   time.Time
	news    chan struct{} // room for one: the registration has come, or was lost
	asked   chan struct{} // closed when it is to stop
	hung    chan error    // room for one: its instance is hung
	settled chan struct{} // closed when it has registered, or is over
	ending  chan struct{} // closed when the program has ended, and it is known whose open was at the head
	over    chan struct{} // closed when it is over
	err     error         // of a life that was over before it has registered; set before settled is closed

	// Guarded by the service's mutex. Number, keeper and locked change once, by the life's own goroutine, which reads them without.
	number   int64          // 0: it was not started by a broker
	keeper   *keeper.Keeper // nil: nothing of it is the broker's to end
	locked   bool           // it has the service's lock: nobody but its program registers
	adopted  bool           // it was started by an earlier broker
	process  process.ID     // of one that was started by hand
	instance *instance      // nil: none is registered now
	latest   *instance      // that was registered; nil: none was
	served   bool           // it has registered at least once, perhaps with an earlier broker
	stopping bool           // it was asked to stop
	retiring bool           // it is asked whether it is idle: nothing is handed over meanwhile
	again    *Cause         // what follows
}

// scarcePause is how long is waited for descriptors where there are none left, and nobody to refuse.
const scarcePause = 50 * time.Millisecond

// lockPoll is how often a held lock is tried again while an instance is waited for.
const lockPoll = 20 * time.Millisecond

// run brings a life to its end, or until the broker's.
func (l *life) run() {
	err := l.begin()
	if err == nil && l.keeper == nil { // it registered by itself
		l.accompany()
		return
	}
	if err == nil {
		defer l.keeper.Close()
		l.attend()
		return
	}
	if l.s.b.ctx.Err() != nil {
		return // the broker leaves it as it is
	}
	l.s.mu.Lock()
	stopped, putOff := l.stopping, errors.Is(err, wire.Unavailable) || errors.Is(err, wire.OverQuota)
	if stopped || putOff {
		l.s.settleLocked(l, err)
	}
	if putOff {
		l.s.failLocked(err)
	}
	l.s.mu.Unlock()
	if putOff {
		l.s.b.log.Warn("start put off", "service", l.s.name, "code", wire.CodeOf(err), "err", err)
	}
	if stopped || putOff {
		l.s.ended(l, Exit{}, nil)
		return
	}
	l.s.b.counters.exit(l.s.name, notStarted)
	l.s.b.log.Error("start failed", "service", l.s.name, "instance", l.number, "code", wire.CodeOf(err), "err", err)
	l.s.ended(l, Exit{Instance: l.number, At: wire.At(time.Now()), Status: "not started", Why: wire.AsError(err).Text}, err)
}

// begin starts the program. Without an error and a keeper, an instance that was there already has registered.
func (l *life) begin() error {
	ctx, cancel := context.WithTimeout(l.s.b.ctx, l.def.StartTimeout)
	defer cancel()
	lock, err := l.acquire(ctx)
	if err != nil || lock == nil {
		return err
	}
	defer lock.Close()
	if err := l.s.b.held(l.s, l.def.Endpoints); err != nil {
		return err
	}
	starting := int(l.s.b.starting.Add(1))
	defer l.s.b.starting.Add(-1)
	if int(lock.Fd()) >= l.s.b.files-spareFiles-starting*startFiles { // its number says how many there are, as in charge
		return startFailed(fmt.Errorf("start %s: %w", l.s.name, unix.EMFILE))
	}
	return l.spawn(ctx, lock)
}

// acquire takes the service's lock. While a process holds it, that one is waited for: then there is a registration and no lock.
func (l *life) acquire(ctx context.Context) (*os.File, error) {
	path := LockPath(l.s.b.conf.Socket, l.s.name)
	for {
		if l.registered() {
			return nil, nil
		}
		lock, err := Lock(path)
		if err == nil && !l.own() {
			lock.Close()
			return nil, nil
		}
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, wire.Conflict) {
			return nil, startFailed(err)
		}
		select {
		case <-l.news:
		case <-time.After(lockPoll):
		case <-l.asked:
			return nil, wire.Errorf(wire.Terminating, "%s is stopped before it has started", l.s.name)
		case <-ctx.Done():
			return nil, wire.Errorf(wire.StartTimeout, "an instance of %s lives%s, for it holds %s, and has not registered within %v", l.s.name, l.s.lastAlive(), path, l.def.StartTimeout)
		}
	}
}

// own notes that the life has the lock. It returns false if an instance has registered just before: the life is that one's.
func (l *life) own() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.locked, l.served = l.instance == nil, l.instance != nil
	return l.locked
}

// pid is the number of the program's process, for people; 0: it is not known yet.
func (l *life) pid() int {
	if l.keeper == nil {
		return 0
	}
	return l.keeper.Record().Program.PID
}

// is reports whether a process is the program's, by its pidfd.
func (l *life) is(h *process.Handle) bool {
	return l.keeper != nil && l.keeper.Program() != nil && l.keeper.Program().Same(h)
}

// String names the life of a program that the broker has started, for people.
func (l *life) String() string {
	if l.keeper == nil {
		return "it is being started"
	}
	return fmt.Sprintf("instance %d, pid %d", l.number, l.pid())
}

// registered reports whether an instance is registered now.
func (l *life) registered() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.instance != nil
}

// attend waits until the program has ended and all its processes are gone, and does what its service file says meanwhile. It returns early when the broker is gone.
func (l *life) attend() {
	late := time.NewTimer(l.def.StartTimeout)
	defer late.Stop()
	known := false // that it has registered with this broker
	idle := time.NewTimer(max(l.def.IdleExit, time.Millisecond))
	defer idle.Stop()
	if l.def.IdleExit == 0 {
		idle.Stop()
	}
	defer l.s.b.programs.add(l)()
	for {
		select {
		case <-l.keeper.Ended():
			l.gone(nil)
			return
		case <-l.news:
			if !l.registered() {
				late.Reset(l.def.StartTimeout)
				continue
			}
			late.Stop()
			if !known {
				known = true
				l.s.remember()
				l.takenUp()
			}
		case <-late.C:
			if err := l.late(); err != nil {
				l.gone(err)
				return
			}
		case <-idle.C:
			if wait, ended := l.idle(); ended {
				l.end()
				l.gone(nil)
				return
			} else {
				idle.Reset(wait)
			}
		case err := <-l.hung:
			l.killHung(err)
			return
		case <-l.asked:
			l.end()
			l.gone(nil)
			return
		case <-l.s.b.ctx.Done():
			return
		}
	}
}

// hasSettled reports whether the life has registered, or it is known that it will not.
func (l *life) hasSettled() bool {
	select {
	case <-l.settled:
		return true
	default:
		return false
	}
}

// hasEnded reports whether the life's program has ended. Others of its processes may be left.
func (l *life) hasEnded() bool {
	select {
	case <-l.ending:
		return true
	default:
		return false
	}
}

// askLocked has the life end.
func (l *life) askLocked() {
	if !l.stopping {
		l.stopping = true
		close(l.asked)
		l.s.changedLocked()
	}
}

// await returns when the life has come to something: nil when it has registered.
func (l *life) await(ctx context.Context) error {
	select {
	case <-l.settled:
		return l.err
	case <-ctx.Done():
		return fmt.Errorf("wait for %s to start: %w", l.s.name, ctx.Err())
	}
}

// accompany keeps a life that the broker has not started until its process is gone.
func (l *life) accompany() {
	l.s.mu.Lock()
	i := l.instance
	l.s.mu.Unlock()
	if i == nil {
		l.s.ended(l, Exit{}, nil)
		return
	}
	h, err := copyHandle(i.handle)
	for scarcity(err) { // meanwhile the instance is registered all the same
		select {
		case <-time.After(scarcePause):
		case <-l.s.b.ctx.Done():
			return
		}
		h, err = copyHandle(i.handle)
	}
	if err != nil { // it was let go just now
		l.s.ended(l, Exit{}, nil)
		return
	}
	defer h.Close()
	gone, unwatch := l.s.b.watchProcess(h)
	defer unwatch()
	asked := l.asked
	late := time.NewTimer(l.def.StartTimeout)
	defer late.Stop()
	for {
		select {
		case <-l.news:
			late.Reset(l.def.StartTimeout)
		case <-late.C:
			if !l.registered() { // its process lives on, and no longer serves: the next may begin
				l.s.ended(l, Exit{}, nil)
				return
			}
		case <-gone:
			l.s.b.counters.exit(l.s.name, exitUnknown)
			l.s.ended(l, Exit{Instance: l.number, At: wire.At(time.Now()), Status: unknown}, nil)
			return
		case <-asked:
			asked = nil
			l.s.b.work.Go(func() { l.drain(l.def.StopTimeout) }) // and nothing more: it is not the broker's
		case <-l.s.b.ctx.Done():
			return
		}
	}
}
