// Package broker knows endpoints and services, opens sessions between clients and instances, and keeps a table of them. It is in nobody's data path:
// what it hands over, it closes.
//
//	accept ── first frame ──▶ open:     policy ▶ registry (or a start) ▶ routed ▶ hand-over on the instance's control connection
//	                     └──▶ register: policy ▶ registry ▶ accepted, and from then on the control connection of that instance
//
// An open for which nobody has to wait is done with by who has accepted its connection; see openAtOnce. All else has a goroutine of its own.
package broker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-dev/fairlead/broker/keeper"
	"github.com/fairlead-dev/fairlead/broker/quota"
	"github.com/fairlead-dev/fairlead/broker/servicefile"
	"github.com/fairlead-dev/fairlead/internal/ring"
	"github.com/fairlead-dev/fairlead/internal/watch"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

const (
	firstFrameWait = 5 * time.Second  // for a connection's first frame
	openWait       = 30 * time.Second // for an open that states no time
	answerWait     = time.Second      // for the peer to take a short answer
	settleWait     = time.Second      // from a broker's start, for instances of the one before it to register
	mostWait       = 5 * time.Minute  // for an open, whatever time it states
	mostDoors      = 1024             // of users, with two descriptors each
)

// A Config says what a broker is. Its zero value with Socket set is a broker that starts nothing.
type Config struct {
	Socket         string                                                 // the path of its socket
	Listener       *net.UnixListener                                      // of that path, where somebody else has made it and keeps it; nil: the broker makes its own
	Services       []servicefile.Service                                  // what it may start
	Load           func() ([]servicefile.Service, []*servicefile.Problem) // what it may start, read anew at each reload; with it Services are not looked at
	Quotas         func() (quota.Limits, []*servicefile.Problem)          // what each user may have, read anew at each reload; with a problem, the limits stay; nil: quota.Defaults
	LeaveInstances bool                                                   // when the broker is stopped, what it has started lives on for the next one
	Version        string                                                 // for people
	Logger         *slog.Logger                                           // nil: nothing is logged
}

// A Broker listens at its socket. It holds the path until Serve has returned.
type Broker struct {
	conf     Config
	log      *slog.Logger
	started  time.Time
	self     wire.Process
	listener *listener
	doors    *doors
	table    *table
	local    *services.Host // serves Endpoint
	watch    *watch.Set     // of the instances' processes
	quotas   *quota.Ledger
	files    int           // how many descriptors it may have open
	starting atomic.Int64  // programs that are being executed
	answers  time.Duration // how long an instance has to say that it is there: answerHung
	programs programs
	cgroups  string       // below which instances have theirs; empty: they have none
	skipped  atomic.Int64 // service files with problems, when they were read last
	denials  denials
	limits   denials // of refusals for a limit: a user's flood of them hides no denial
	events   events
	counters *counters
	work     sync.WaitGroup
	ctx      context.Context // ends when the broker is stopped
	cancel   context.CancelFunc
	stopping chan struct{} // closed when it begins to stop
	once     sync.Once     // of that
	leave    atomic.Bool   // what it has started lives on

	reloading sync.Mutex // held by who changes what is declared
	closed    bool       // nothing is declared any more; guarded by reloading

	mu        sync.Mutex
	services  map[string]*instance  // that are registered
	endpoints map[string]*instance  // of these
	latest    map[lineage]*instance // that are not finished
	claimed   chan struct{}         // closed and replaced when an instance has registered
	declared  map[string]*service   // by name
	owners    map[string]*service   // by endpoint
	callers   map[string]party      // of sessions with Endpoint, by their ids
}

// New takes the socket's path over and listens. Clients wait until Serve is called. It fails with wire.Conflict while another broker holds the path.
func New(c Config) (*Broker, error) {
	var err error
	if c.Socket, err = filepath.Abs(c.Socket); err != nil {
		return nil, fmt.Errorf("find the broker's socket: %w", err)
	}
	b := &Broker{
		conf: c, log: c.Logger, started: time.Now(),
		self:     wire.Process{PID: os.Getpid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Program: filepath.Base(os.Args[0])},
		counters: newCounters(), files: openFiles(),
		stopping: make(chan struct{}), answers: answerHung,
		claimed:  make(chan struct{}),
		services: map[string]*instance{}, endpoints: map[string]*instance{}, latest: map[lineage]*instance{},
		declared: map[string]*service{}, owners: map[string]*service{}, callers: map[string]party{},
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	b.denials.log, b.limits.log = b.log, b.log
	b.events.refusals, b.events.ring = b.counters.refusals, ring.New[*Event](keptEvents)
	b.quotas = quota.NewLedger(b.self.UID, quota.Defaults().Within(b.files))
	b.readQuotas()
	b.table = newTable(&b.events, b.counters.ends, b.quotas)
	b.leave.Store(c.LeaveInstances)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	if b.watch, err = watch.New(); err != nil {
		return nil, fmt.Errorf("watch instances: %w", err)
	}
	if b.listener, err = listen(c.Socket, c.Listener); err != nil {
		b.watch.Close()
		return nil, err
	}
	if b.doors, err = newDoors(c.Socket, min(mostDoors, (b.files-256)/16)); err != nil {
		b.log.Warn("all users wait in one queue", "err", err)
	}
	b.cgroups, _ = keeper.Cgroups() // without, a keeper alone ends what an instance has started
	err = b.declareFirst()
	if err == nil {
		err = b.serveEndpoint()
	}
	if err != nil {
		b.watch.Close()
		b.doors.close()
		b.listener.close()
		return nil, err
	}
	b.takeUp()
	return b, nil
}

// Serve serves until ctx ends or an operator shuts the broker down. Then it stops the instances that a broker started, unless they are to be left, lets all others go, which wait for the next
// broker, and returns nil when all it stops has ended.
func (b *Broker) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, b.endServing)
	defer stop()
	for _, uid := range []uint32{0, b.self.UID} { // an operator gets in
		b.letIn(uid)
	}
	b.serveAt(b.listener.door)
	b.stop()
	return nil
}

// Stopping returns a channel that is closed when the broker begins to stop, whoever wants that.
func (b *Broker) Stopping() <-chan struct{} { return b.stopping }

// endServing has Serve stop what there is to stop, and return.
func (b *Broker) endServing() {
	b.once.Do(func() {
		close(b.stopping)
		b.listener.stop()
		b.doors.close()
	})
}

// shutdown has the broker stop, once its caller has the answer. Only who may do everything may do that.
func (b *Broker) shutdown(ctx context.Context, r ShutdownRequest) (Status, error) {
	caller := b.caller(ctx)
	if err := b.mayAdminister(caller, nil, "shut the broker down"); err != nil {
		return Status{}, err
	}
	b.log.Info("broker is shut down by an operator", "peer", caller.PID, "uid", caller.UID)
	if r.Leave {
		b.leave.Store(true)
	}
	context.AfterFunc(services.FromContext(ctx).Context(), b.endServing)
	time.AfterFunc(answerWait, b.endServing)
	return b.status(ctx, nil)
}

// goodbye is what is answered to who wants something of a broker that is being stopped. Where it leaves its instances another one follows, which is asked again.
func (b *Broker) goodbye() error {
	if b.leave.Load() {
		return wire.Errorf(wire.Terminating, "the broker is being stopped, and leaves what it has started to the next")
	}
	return wire.Errorf(wire.Unavailable, "the broker is being stopped")
}

// stop lets everything go.
func (b *Broker) stop() {
	b.reloading.Lock()
	b.closed = true
	b.reloading.Unlock()
	var stopping sync.WaitGroup
	for _, s := range b.all() {
		stopping.Go(func() { s.close(b.leave.Load()) })
	}
	stopping.Wait()
	b.cancel()
	b.local.Release()
	b.work.Wait()
	b.watch.Close()
	b.doors.close() // whoever began that: the next broker may make them anew as soon as the path is given up
	b.listener.close()
}
