// Package broker knows endpoints and services, opens sessions between clients and instances, and keeps a table of them. It is in nobody's data path:
// what it hands over, it closes.
//
//	accept ── first frame ──▶ open:     policy ▶ registry (or a start) ▶ routed ▶ hand-over on the instance's control connection
//	                     └──▶ register: policy ▶ registry ▶ accepted, and from then on the control connection of that instance
package broker

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/internal/watch"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const (
	firstFrameWait = 5 * time.Second  // for a connection's first frame
	openWait       = 30 * time.Second // for an open that states no time
	answerWait     = time.Second      // for the peer to take a short answer
	stopWait       = 10 * time.Second // for an instance to stop before it is killed
	settleWait     = time.Second      // from a broker's start, for instances of the one before it to register
	mostWait       = 5 * time.Minute  // for an open, whatever time it states
	maxUnread      = 1024             // connections whose first frame has not come; a further one is turned away
	maxWaiting     = 2048             // opens that wait for an instance; a further one is turned away
)

// A Config says what a broker is. Its zero value with Socket set is a broker that starts nothing.
type Config struct {
	Socket       string        // the path of its socket
	Services     []Service     // what it starts at the first open
	StartTimeout time.Duration // for an instance to register; zero: 10 s
	Version      string        // for people
	Logger       *slog.Logger  // zero: nothing is logged
}

// A Broker listens at its socket. It holds the path until Serve has returned.
type Broker struct {
	conf     Config
	log      *slog.Logger
	started  time.Time
	self     wire.Process
	listener *listener
	table    *table
	local    *services.Host // serves Endpoint
	watch    *watch.Set     // of the instances' processes
	unread   chan struct{}
	waiting  chan struct{}
	denied   atomic.Int64
	denials  denials
	work     sync.WaitGroup
	ctx      context.Context // ends when the broker is stopped
	cancel   context.CancelFunc

	mu        sync.Mutex
	services  map[string]*instance  // that are registered
	endpoints map[string]*instance  // of these
	latest    map[lineage]*instance // that are not finished
	claimed   chan struct{}         // closed and replaced when an instance has registered
	declared  map[string]*service   // by name; set once
	owners    map[string]*service   // by endpoint; set once
}

// New takes the socket's path over and listens. Clients wait until Serve is called. It fails with wire.Conflict while another broker holds the path.
func New(c Config) (*Broker, error) {
	c.StartTimeout = cmp.Or(c.StartTimeout, 10*time.Second)
	var err error
	if c.Socket, err = filepath.Abs(c.Socket); err != nil {
		return nil, fmt.Errorf("find the broker's socket: %w", err)
	}
	b := &Broker{
		conf: c, log: c.Logger, started: time.Now(),
		self:     wire.Process{PID: os.Getpid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Program: filepath.Base(os.Args[0])},
		table:    newTable(),
		unread:   make(chan struct{}, maxUnread),
		waiting:  make(chan struct{}, maxWaiting),
		claimed:  make(chan struct{}),
		services: map[string]*instance{}, endpoints: map[string]*instance{}, latest: map[lineage]*instance{},
		declared: map[string]*service{}, owners: map[string]*service{},
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	b.denials.log = b.log
	b.ctx, b.cancel = context.WithCancel(context.Background())
	for _, s := range c.Services {
		if err := b.declare(s); err != nil {
			return nil, err
		}
	}
	if b.watch, err = watch.New(); err != nil {
		return nil, fmt.Errorf("watch instances: %w", err)
	}
	if b.listener, err = listen(c.Socket); err != nil {
		b.watch.Close()
		return nil, err
	}
	if err := b.serveEndpoint(); err != nil {
		b.watch.Close()
		b.listener.close()
		return nil, err
	}
	return b, nil
}

// Serve serves until ctx ends. Then it stops the instances that a broker started, lets all others go, which wait for the next broker, and returns nil
// when all it started has ended.
func (b *Broker) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { b.listener.UnixListener.Close() })
	defer stop()
	for {
		conn, err := b.listener.accept()
		if err != nil {
			break
		}
		b.work.Go(func() { b.welcome(conn) })
	}
	b.stop()
	return nil
}

// stop lets everything go.
func (b *Broker) stop() {
	var stopping sync.WaitGroup
	for _, s := range b.declared {
		stopping.Go(s.stop)
	}
	stopping.Wait()
	b.cancel()
	b.local.Release()
	b.work.Wait()
	b.watch.Close()
	b.listener.close()
}

// welcome reads a connection's first frame, and not a byte more, and does what it asks for.
func (b *Broker) welcome(conn *net.UnixConn) {
	peer, err := identify(conn)
	if err == nil {
		err = b.permitted(peer)
	}
	var f wire.Frame
	if err == nil {
		f, err = b.firstFrame(conn)
	}
	if err != nil {
		peer.handle.Close()
		b.refuse(conn, err)
		if wire.CodeOf(err) == wire.NotPermitted {
			b.denials.warn("denied", "peer", peer.PID, "uid", peer.UID)
		}
		return
	}
	switch f.Kind {
	case wire.KindOpen:
		b.open(conn, peer, f.Body)
	case wire.KindRegister:
		b.register(conn, peer, f.Body, nil)
	default:
		peer.handle.Close()
		b.refuse(conn, wire.Errorf(wire.Malformed, "the first frame is a %v: want open or register", f.Kind))
	}
}

// firstFrame reads the first frame of a connection, within its time.
func (b *Broker) firstFrame(conn *net.UnixConn) (wire.Frame, error) {
	select {
	case b.unread <- struct{}{}:
		defer func() { <-b.unread }()
	default:
		return wire.Frame{}, wire.Errorf(wire.OverQuota, "more than %d connections without a first frame", maxUnread)
	}
	conn.SetDeadline(time.Now().Add(firstFrameWait))
	defer context.AfterFunc(b.ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	f, files, err := socket.ReadFrame(conn)
	socket.Discard(files)
	return f, err
}

// A party is who is at the other end of a connection.
type party struct {
	wire.Process
	handle *process.Handle // nil where the kernel gives none
}

// identify takes the peer's identity from its socket.
func identify(conn *net.UnixConn) (party, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return party{}, err
	}
	h, cred, err := process.FromPeer(raw)
	if err != nil && cred.PID != 0 {
		return party{}, fmt.Errorf("identify a peer: %w", err)
	}
	p := party{Process: wire.Process{PID: cred.PID, UID: cred.UID, GID: cred.GID}, handle: h}
	if h != nil {
		p.Program = h.Program()
	}
	return p, nil
}

// permitted is the policy: the broker's own user and root may open and register. It is asked before anything is read.
func (b *Broker) permitted(p party) error {
	if p.UID == 0 || p.UID == b.self.UID {
		return nil
	}
	b.denied.Add(1)
	return wire.Errorf(wire.NotPermitted, "this broker serves uid %d and root only, and not uid %d", b.self.UID, p.UID)
}

// refuse answers with err and closes the connection. A peer that went away is told nothing.
func (b *Broker) refuse(conn *net.UnixConn, err error) {
	defer conn.Close()
	e := wire.AsError(err).Bounded()
	if e.Code == wire.Internal { // of the socket: the peer is gone or too slow
		b.log.Debug("connection without a first frame", "err", err)
		return
	}
	e.Origin = wire.Broker
	conn.SetDeadline(time.Now().Add(answerWait))
	if f, err := wire.NewFrame(wire.KindRefused, 0, e); err == nil {
		socket.WriteFrame(conn, f)
	}
}

// open routes a client to an instance and hands its connection over.
func (b *Broker) open(conn *net.UnixConn, client party, body []byte) {
	defer client.handle.Close()
	var o wire.Open
	if err := wire.Unmarshal(body, &o); err != nil {
		b.refuse(conn, err)
		return
	}
	if err := b.tryOpen(conn, client, o); err != nil {
		b.refuse(conn, err)
	}
}

// tryOpen waits for an instance and hands the connection over, for as long as the client waits. With an error the connection is still the broker's.
func (b *Broker) tryOpen(conn *net.UnixConn, client party, o wire.Open) error {
	select {
	case b.waiting <- struct{}{}:
		defer func() { <-b.waiting }()
	default:
		return wire.Errorf(wire.OverQuota, "more than %d opens wait for an instance", maxWaiting)
	}
	patience := openWait
	if o.Within > 0 {
		patience = time.Duration(min(o.Within, mostWait.Milliseconds())) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for {
		i, err := b.routeWhileThere(ctx, conn, o.Endpoint)
		if err != nil {
			return err
		}
		err = b.handOver(ctx, i, conn, client, o)
		if err == nil || !i.over() || ctx.Err() != nil {
			return err
		}
		b.unregister(i) // another instance may take it
	}
}

// routeWhileThere is route for as long as the client at the other end of conn is there.
func (b *Broker) routeWhileThere(ctx context.Context, conn *net.UnixConn, endpoint string) (*instance, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	w, err := b.watch.Add(raw, watch.Socket, cancel)
	if err != nil {
		return nil, fmt.Errorf("watch a client that waits: %w", err)
	}
	defer b.watch.Remove(w)
	return b.route(ctx, endpoint)
}

// handOver tells the client where it goes, and passes its connection to the instance. With an error the connection is still the broker's.
func (b *Broker) handOver(ctx context.Context, i *instance, conn *net.UnixConn, client party, o wire.Open) error {
	s := Session{ID: session.NewID(), Endpoint: o.Endpoint, Title: o.Title, OpenedAt: wire.At(time.Now()), Client: client.Process, Instance: i.process}
	b.table.begin(s, i)
	err := i.routed(conn, s.ID)
	if err == nil {
		err = i.take(ctx, wire.HandOver{
			Session: s.ID, Endpoint: o.Endpoint, Title: o.Title, Features: o.Features, Limits: o.Limits, Client: client.Process,
		}, conn)
	}
	if err != nil {
		b.table.drop(s.ID)
	}
	return err
}
