package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/internal/watch"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// An instance is one registration of a process that serves endpoints. A process that registers again after it lost the broker is a new one, the successor of
// the one before, whose sessions it gets:
//
//	claimed ── control lost ──▶ over ── no session is open, or the process is gone ──▶ finished
//	                              └── succeeded: its sessions move to the successor ──▶ finished
//
// It may be succeeded as soon as it is over, before its own goroutine knows that. A successor finishes after what it succeeded.
type instance struct {
	service   string
	number    int64 // 0: it has none
	endpoints []string
	process   wire.Process
	id        process.ID       // of the process, for telling it from all others
	handle    *process.Handle  // nil for the broker itself
	control   *session.Session // nil for the broker itself
	local     *services.Host   // only of the broker itself
	relays    bool             // it says routed itself, to clients that leave it to instances
	since     time.Time
	finished  chan struct{} // closed when nothing is left to do for it
	before    *instance     // what it succeeded, until that is finished; of its own goroutine
	next      *instance     // set before succeeded is closed
	succeeded chan struct{} // closed when the process has registered again
	mostTold  int           // how many open sessions it may tell of that this broker has not handed over
	believed  bool          // of who their clients are: these are charged for them. One that this broker has started has none of an earlier broker's
	charged   bool          // to payer, as a registration; guarded by the broker's mutex
	payer     uint32        // likewise
	lastEnd   time.Time     // of one of its sessions; guarded by the table's mutex
	heard     bool          // it has told of a session; likewise
	opening   int           // hand-overs that it has not taken up; likewise
	progress  time.Time     // when it took one up last, or the first of these was handed over; likewise
	looked    bool          // a timer is set for that; likewise
	late      chan struct{} // room for one: it has taken nothing up for too long; nil for the broker itself
	hung      atomic.Pointer[wire.Error]
}

// route says which session a client gets and who this instance is.
func (i *instance) route(id string) wire.Routed {
	return wire.Routed{Session: id, Service: i.service, Instance: i.number, Process: i.process}
}

// routed tells a client which session it gets and who this instance is, with the instance's pidfd.
func (i *instance) routed(conn *net.UnixConn, id string, pidfd bool) error {
	f, err := wire.NewFrame(wire.KindRouted, 0, i.route(id))
	if err != nil {
		return err
	}
	var files []*os.File
	if pidfd && i.handle != nil { // it is a convenience: there may be no descriptor left for it
		if f, err := i.handle.File(); err == nil {
			defer f.Close()
			files = append(files, f)
		}
	}
	conn.SetDeadline(time.Now().Add(answerWait))
	err = socket.WriteFrame(conn, f, files...)
	if _, unsent := errors.AsType[*socket.UnsentError](err); unsent {
		err = socket.WriteFrame(conn, f)
	}
	return err
}

// String names the instance for people. One that no broker has started has no number.
func (i *instance) String() string {
	if i.number == 0 {
		return fmt.Sprintf("%s (pid %d)", i.service, i.process.PID)
	}
	return fmt.Sprintf("%s (instance %d, pid %d)", i.service, i.number, i.process.PID)
}

// event returns an event of the instance.
func (i *instance) event(kind string) Event {
	return Event{Kind: kind, Service: i.service, Instance: i.number, PID: i.process.PID}
}

// take hands a client's connection to the instance; the broker's copies are closed when it has left. It waits until ctx ends for an instance that is
// slow to take others. With an error conn is still the caller's.
func (i *instance) take(ctx context.Context, h wire.HandOver, conn *net.UnixConn) error {
	if i.local != nil {
		i.local.HandOver(h, conn)
		return nil
	}
	f, err := conn.File()
	if err != nil {
		return fmt.Errorf("copy a connection: %w", err)
	}
	defer f.Close()
	h.Socket = f
	socket.PassRights(f, true)
	if err := i.control.Send(ctx, wire.MethodHandOver, h); err != nil {
		if wire.CodeOf(err) == wire.DeadlineExceeded {
			return wire.Errorf(wire.Unavailable, "%v takes no sessions: it is stopped or overloaded", i)
		}
		return err
	}
	return conn.Close()
}

// over reports whether the instance takes no more sessions: it is being stopped, its control connection is lost, or, by the kernel's word, its process is gone.
func (i *instance) over() bool {
	return i.control != nil && (i.control.Terminating() || i.handle.Gone())
}

// register enters an instance, answers it, and keeps it until its process is gone or has registered again. One that the broker started comes with its
// life. It owns conn and the peer's handle.
func (b *Broker) register(conn *net.UnixConn, p party, body []byte, l *life) {
	defer p.handle.Close()
	conn.SetDeadline(time.Time{})
	i, sessions, err := newInstance(p, body)
	if err == nil {
		l, err = b.claim(i, p, l, conn)
	}
	if err != nil {
		err = scarce(err)
		b.refuse(conn, err)
		var on Event
		if i != nil {
			on.Service = i.service
		}
		b.overQuota(on, p.Process, err)
		if wire.CodeOf(err) != wire.OverQuota {
			b.denials.warn("registration refused", "peer", p.PID, "uid", p.UID, "code", wire.CodeOf(err), "err", err)
		}
		return
	}
	defer context.AfterFunc(b.ctx, func() {
		i.control.Abort(wire.End{Code: wire.Terminating, Origin: wire.Local, Text: "the broker is stopped"})
	})()
	defer b.finish(i)
	gone, unwatch := b.watchProcess(i.handle)
	defer unwatch()
	b.tell(i, sessions)
	b.attend(i, b.hangTimeout(i, l))
	i.control.Wait()
	b.unregister(i)
	b.events.add(i.event(EventInstanceUnregistered))
	b.await(i, gone, l)
}

// hangTimeout returns how often an instance is asked whether it is there: as the definition says that its life was started by, or else the service's.
func (b *Broker) hangTimeout(i *instance, l *life) time.Duration {
	if l != nil {
		return l.def.HangTimeout
	}
	if s := b.service(i.service); s != nil {
		return s.definition().HangTimeout
	}
	return 0
}

// newInstance makes an instance of a registration.
func newInstance(p party, body []byte) (*instance, []wire.SessionInfo, error) {
	var r wire.Register
	if err := wire.Unmarshal(body, &r); err != nil {
		return nil, nil, err
	}
	if p.handle == nil || p.PID == 0 {
		return nil, nil, wire.Errorf(wire.NotPermitted, "register %s: a process in a pid namespace that cannot be seen from here may not", r.Service)
	}
	id, err := process.Identify(p.PID)
	if err == nil && p.handle.Gone() {
		err = process.ErrGone // and the number may be another's
	}
	if err != nil {
		return nil, nil, fmt.Errorf("register %s: %w", r.Service, err)
	}
	i := &instance{
		service: r.Service, number: r.Instance, endpoints: r.Endpoints, process: p.Process, id: id, handle: p.handle, since: id.Started(),
		finished: make(chan struct{}), succeeded: make(chan struct{}), late: make(chan struct{}, 1), relays: slices.Contains(r.Features, wire.FeatureRelay),
	}
	return i, r.Sessions, nil
}

// tell enters what an instance tells of its sessions into the table.
func (b *Broker) tell(i *instance, sessions []wire.SessionInfo) {
	over := 0
	for _, info := range sessions {
		if !b.table.update(info, i) {
			over++
		}
	}
	if over > 0 {
		err := wire.Errorf(wire.OverQuota, "%d sessions of %v are not listed: there are too many that this broker has not handed over", over, i)
		b.events.refused(i.event(EventOverQuota), err)
		b.limits.warn("sessions not listed", "service", i.service, "instance", i.number, "peer", i.process.PID, "uid", i.process.UID, "code", err.Code, "err", err)
	}
}

// same reports whether both are registrations of one process for one service.
func (i *instance) same(other *instance) bool {
	return i == other || i.control != nil && i.id == other.id && i.service == other.service
}

// A lineage is one process as an instance of one service: all its registrations.
type lineage struct {
	process.ID
	service string
}

func (i *instance) lineage() lineage { return lineage{i.id, i.service} }

// succeedLocked makes an instance the latest of its lineage.
func (b *Broker) succeedLocked(i *instance) {
	l := i.lineage()
	i.before = b.latest[l]
	b.latest[l] = i
	if i.before != nil {
		i.before.next = i
		if i.before.charged { // it is one process
			i.charged, i.payer, i.before.charged = true, i.before.payer, false
		}
		close(i.before.succeeded)
	}
}

// finish takes an instance for which nothing is left to do out of its lineage.
func (b *Broker) finish(i *instance) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := i.lineage(); b.latest[l] == i {
		delete(b.latest, l)
	}
	if i.charged {
		b.quotas.Discharge(i.payer, quota.Registrations)
	}
	close(i.finished)
}

// await waits until the process of an instance whose control connection is lost is gone, and closes the sessions that it still had.
// A process that lives on keeps them, and registers again.
func (b *Broker) await(i *instance, gone <-chan struct{}, l *life) {
	if i.before != nil {
		<-i.before.finished // its sessions are this one's now
		i.before = nil
	}
	if live, _ := b.table.count(i); live == 0 {
		return
	}
	text := i.String() + " is gone"
	select {
	case <-gone:
	case <-i.succeeded:
		b.table.move(i, i.next)
		return
	case <-b.ctx.Done():
		return
	}
	if l != nil {
		select {
		case <-l.ending: // its keeper tells at once
		case <-b.ctx.Done():
			return
		}
		text += ": " + l.keeper.Outcome().String()
	}
	b.table.end(i, i.end(text))
}

// watchProcess returns a channel that is closed when a process is gone, until stop is called. One that cannot be watched is taken to be gone.
func (b *Broker) watchProcess(h *process.Handle) (gone <-chan struct{}, stop func()) {
	closed := make(chan struct{})
	raw, err := h.SyscallConn()
	var w *watch.Watch
	if err == nil {
		w, err = b.watch.Add(raw, watch.Process, func() { close(closed) })
	}
	if err != nil {
		b.log.Error("cannot watch an instance", "peer", h.PID(), "err", err)
		close(closed)
		return closed, func() {}
	}
	return closed, func() { b.watch.Remove(w) }
}

// controlMux serves what an instance tells the broker.
func (b *Broker) controlMux(i *instance) *services.Mux {
	mux := services.NewMux()
	services.Handle(mux, wire.MethodSessions, func(_ context.Context, news wire.Sessions) (any, error) {
		b.tell(i, news.Sessions)
		return nil, nil
	})
	return mux
}

// instances returns all registered instances, by service.
func (b *Broker) instances() []*instance {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.SortedFunc(maps.Values(b.services), func(a, b *instance) int { return strings.Compare(a.service, b.service) })
}
