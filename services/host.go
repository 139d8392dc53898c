package services

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/pace"
	"github.com/fairlead-dev/fairlead/internal/process"
	"github.com/fairlead-dev/fairlead/internal/watch"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// An Opening is a session that a client asks for. Who it is comes from the kernel.
type Opening struct {
	Session  string // the session's id
	Endpoint string
	Title    string // anything the client wrote
	Client   wire.Process
}

const (
	// acceptWait bounds how long a session may take to be accepted: the author's own check, and the client's being told.
	acceptWait = 10 * time.Second
	// maxOpening is how many author's checks run at a time; the broker waits with further ones.
	maxOpening = 64
	// exitGrace is how long after its client's exit a session may still read what the client had written, if its socket is kept open by another process.
	exitGrace = 100 * time.Millisecond
	// letGoWait bounds how long Close waits for a client to let its session go: less than a broker waits for the answer.
	letGoWait = 3 * time.Second
	// handlerWait bounds how long a stopping service waits for handlers whose context has ended.
	handlerWait = 5 * time.Second
)

// A Host holds the live sessions of one instance: it takes connections that a broker hands over. Servers have one, and so has the broker for its own
// endpoint; authors need none of their own.
type Host struct {
	conf    Server
	log     *slog.Logger
	watch   *watch.Set
	clients *watch.Processes
	unables pace.Limiter
	files   int // how many descriptors this process may have open; a broker counts its own

	accepting time.Duration // acceptWait
	news      news
	turns     chan struct{} // sessions that are being accepted
	opening   sync.WaitGroup
	ctx       context.Context // ends when the host takes no more hand-overs
	cancel    context.CancelFunc
	drained   sync.Once

	returning sync.WaitGroup // sessions, until they have ended and all their handlers have returned

	mu       sync.Mutex
	sessions map[string]*hosted
	busy     int  // hand-overs that were taken, until they are refused or their session counts as returned
	draining bool // it takes no more hand-overs
}

// A hosted session is one of a Host's.
type hosted struct {
	*session.Session
	client *watch.Share // nil where the kernel gave no handle on it
}

// NewHost returns a Host for the endpoints of a Server. It must be released.
func NewHost(s Server) (*Host, error) {
	set, err := watch.New()
	if err != nil {
		return nil, fmt.Errorf("watch clients: %w", err)
	}
	logger := s.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	h := &Host{
		conf: s, log: logger, watch: set, clients: watch.NewProcesses(set), files: math.MaxInt32, accepting: acceptWait, turns: make(chan struct{}, maxOpening),
		sessions: map[string]*hosted{},
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.news.init()
	return h, nil
}

// HandOver takes a client's connection, which it owns from now on, and opens the session: at once where the author has no check, else in the background. Then it
// waits while many are being opened.
func (h *Host) HandOver(o wire.HandOver, conn *net.UnixConn) {
	checked := h.conf.Accept != nil
	if checked {
		select {
		case h.turns <- struct{}{}:
		case <-h.ctx.Done():
		}
	}
	h.mu.Lock()
	draining := h.draining
	if !draining {
		h.busy++
		h.opening.Add(1)
	}
	h.mu.Unlock()
	switch {
	case draining:
		h.refuse(o, conn, wire.Errorf(wire.Terminating, "the service is being stopped"))
	case checked:
		go func() {
			defer func() { <-h.turns }()
			h.open(o, conn)
		}()
	default:
		h.open(o, conn)
	}
}

// unable logs what could not be done for a client. Clients can cause any number of such lines.
func (h *Host) unable(what string, args ...any) {
	tell, untold := h.unables.Admit(time.Now())
	if tell && untold > 0 {
		args = append(args, "more", untold)
	}
	if tell {
		h.log.Warn(what, args...)
	}
}

// open accepts or refuses a session and begins it.
func (h *Host) open(o wire.HandOver, conn *net.UnixConn) {
	defer h.opening.Done()
	conn.SetDeadline(time.Time{}) // who hands it over may have had one
	client, peer, err := identify(o, conn)
	if err == nil {
		err = h.room(conn)
	}
	if err == nil && client != nil {
		err = h.room(client)
	}
	if err == nil {
		err = h.accept(o, conn, client, peer)
	}
	if err != nil {
		client.Close()
		h.refuse(o, conn, err)
		h.less()
	}
}

// identify takes the client's identity from its socket. What it is called comes from the broker, who saw it first. A client that has exited is no
// client any more, whoever holds its socket.
func identify(o wire.HandOver, conn *net.UnixConn) (*process.Handle, wire.Process, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, wire.Process{}, err
	}
	client, cred, err := process.FromPeer(raw)
	if err != nil && cred.PID != 0 {
		return nil, wire.Process{}, fmt.Errorf("identify a client: %w", err)
	}
	return client, wire.Process{PID: cred.PID, UID: cred.UID, GID: cred.GID, Program: o.Client.Program}, nil
}

// accept asks the author, tells the client that it is accepted, and begins the session.
func (h *Host) accept(o wire.HandOver, conn *net.UnixConn, client *process.Handle, peer wire.Process) error {
	mux := h.conf.Endpoints[o.Endpoint]
	if mux == nil {
		return wire.Errorf(wire.UnknownEndpoint, "this instance does not serve %s", o.Endpoint)
	}
	if err := h.ask(Opening{Session: o.Session, Endpoint: o.Endpoint, Title: o.Title, Client: peer}); err != nil {
		return err
	}
	if h.ctx.Err() != nil { // whatever the check says, as one that outlasts drain's patience
		return wire.Errorf(wire.Terminating, "the service is being stopped")
	}
	limits := h.conf.Limits.OrDefault()
	features := slices.DeleteFunc(session.Offer(), func(f string) bool { return !slices.Contains(o.Features, f) })
	if err := h.answer(conn, o.Routed, wire.Accepted{Features: features, Limits: limits}); err != nil {
		return err
	}
	var handler session.Handler = mux
	if h.conf.Called != nil {
		handler = teller{mux: mux, told: h.conf.Called, log: h.log}
	}
	h.mu.Lock() // who asks for the session, once a call on it was answered, finds it
	s, err := session.New(conn, session.Config{
		ID: o.Session, Endpoint: o.Endpoint, Title: o.Title, Peer: peer,
		Handler: handler, Send: o.Limits, Receive: limits, Logger: h.log, Idle: h.watch, Lane: slices.Contains(features, wire.FeatureLane),
	})
	begun := &hosted{Session: s}
	if err == nil {
		h.sessions[o.Session] = begun
		h.returning.Add(1)
	}
	h.mu.Unlock()
	if err != nil {
		return err
	}
	h.add(begun, client, wire.SessionInfo{
		ID: o.Session, Endpoint: o.Endpoint, Title: o.Title, OpenedAt: s.Started().UnixNano(), Client: peer,
	})
	return nil
}

// answer accepts a session, and says before that what it is where the broker has left that to the instance. It sets no deadline, which costs a timer, unless the
// client takes less than that at once.
func (h *Host) answer(conn *net.UnixConn, routed *wire.Routed, accepted wire.Accepted) error {
	f, err := wire.NewFrame(wire.KindAccepted, 0, accepted)
	if err != nil {
		return err
	}
	var b []byte
	if routed != nil {
		first, err := wire.NewFrame(wire.KindRouted, 0, *routed)
		if err != nil {
			return err
		}
		b = first.Append(nil)
	}
	b = f.Append(b)
	n := socket.TryWrite(conn, b)
	if n == len(b) {
		return nil
	}
	conn.SetWriteDeadline(time.Now().Add(h.accepting))
	defer conn.SetWriteDeadline(time.Time{})
	if _, err := conn.Write(b[n:]); err != nil {
		return fmt.Errorf("accept a session: %w", err)
	}
	return nil
}

// ask asks the author's own check. One that panics refuses.
func (h *Host) ask(o Opening) (err error) {
	if h.conf.Accept == nil {
		return nil
	}
	defer func() {
		if r := recover(); r != nil {
			h.log.Error("the accept check panicked", "endpoint", o.Endpoint, "err", r)
			err = wire.Errorf(wire.Refused, "the service's own check panicked")
		}
	}()
	ctx, cancel := context.WithTimeout(h.ctx, h.accepting)
	defer cancel()
	return h.conf.Accept(ctx, o)
}

// add tells of a session that has begun, and has it leave when it ends.
func (h *Host) add(s *hosted, client *process.Handle, info wire.SessionInfo) {
	if client != nil {
		var err error
		if s.client, err = h.clients.Join(client, func() { h.exited(s) }); err != nil { // its socket still tells
			h.unable("cannot watch a client's process", "session", session.ShortID(s.ID()), "peer", info.Client.PID, "err", err)
		}
	}
	h.news.opened(info)
	s.OnEnd(func(end wire.End) { h.left(s, end) })
	if h.conf.Opened != nil {
		h.conf.Opened(s.Session)
	}
}

// exited ends the session of a client that has exited, in case somebody else keeps its socket open.
func (h *Host) exited(s *hosted) {
	t := time.AfterFunc(exitGrace, func() {
		s.Abort(wire.End{Code: wire.Invalid, Origin: wire.Peer, Text: "the client has exited"})
	})
	s.OnEnd(func(wire.End) { t.Stop() })
}

// left takes a session that has ended out. It counts until its handlers have returned, too.
func (h *Host) left(s *hosted, end wire.End) {
	if s.client != nil {
		s.client.Leave()
	}
	h.mu.Lock()
	delete(h.sessions, s.ID())
	h.mu.Unlock()
	h.news.ended(s.ID(), end.Bounded())
	go func() { // drain waits for it
		defer h.returning.Done()
		s.Wait()
		h.less()
	}()
}

// less notes that a hand-over has come to its end.
func (h *Host) less() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.busy--
}

// endIdle reports whether nothing is to do: there is no session, none is being opened, and no handler runs, also none of a session that has ended. Then no
// further hand-over is taken.
func (h *Host) endIdle() bool {
	h.mu.Lock()
	idle := h.busy == 0
	if idle {
		h.draining = true
	}
	h.mu.Unlock()
	if idle {
		h.cancel()
	}
	return idle
}

// refuse tells a client why it gets no session, and the broker that there is none.
func (h *Host) refuse(o wire.HandOver, conn *net.UnixConn, err error) {
	defer socket.Drop(conn)
	e := wire.AsError(err).Bounded()
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		e.Code = wire.OverQuota
	case e.Code == wire.Internal:
		e.Code = wire.Refused
	}
	if f, err := wire.NewFrame(wire.KindRefused, 0, e); err == nil {
		conn.SetWriteDeadline(time.Now().Add(time.Second))
		socket.WriteFrame(conn, f)
	}
	h.lost(o, wire.End{Code: e.Code, Origin: wire.Local, Text: e.Text})
}

// lost reports a hand-over that became no session.
func (h *Host) lost(o wire.HandOver, end wire.End) {
	h.news.over(wire.SessionInfo{ID: o.Session, Endpoint: o.Endpoint, Title: o.Title, OpenedAt: time.Now().UnixNano(), Client: o.Client}, end.Bounded())
}

// News is sent to when there is something to take with Take.
func (h *Host) News() <-chan struct{} { return h.news.some }

// Take takes at most wire.MaxBatch sessions that opened or ended and of which the broker has not been told.
func (h *Host) Take() []wire.SessionInfo { return h.news.take() }

// Inspect returns what a session looks like now. It fails with wire.NotFound.
func (h *Host) Inspect(id string) (wire.Inspection, error) {
	s, err := h.find(id)
	if err != nil {
		return wire.Inspection{}, err
	}
	return s.Inspect(), nil
}

// Traffic returns what sessions have carried, in their order; that of one that is not here is zero.
func (h *Host) Traffic(ids []string) []wire.Traffic {
	list := make([]wire.Traffic, len(ids))
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, id := range ids {
		if s := h.sessions[id]; s != nil {
			list[i] = s.Traffic()
		}
	}
	return list
}

// Close ends a session for the broker, and returns when its client has let go of it, when ctx ends, or after 3 s. It fails with wire.NotFound.
func (h *Host) Close(ctx context.Context, id, text string) error {
	s, err := h.find(id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, letGoWait)
	defer cancel()
	if err := s.Shutdown(ctx, wire.End{Code: wire.Interrupted, Origin: wire.Broker, Text: text}); err != nil {
		h.log.Debug("client was slow to let its session go", "session", session.ShortID(id), "err", err)
	}
	return nil
}

func (h *Host) find(id string) (*hosted, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sessions[id]; s != nil {
		return s, nil
	}
	return nil, wire.Errorf(wire.NotFound, "no session %s here", session.ShortID(id))
}

// drain refuses further connections, drains all sessions at the same time, and returns when they have ended and all handlers have returned, or soon after ctx
// has ended. Only the first one does anything.
func (h *Host) drain(ctx context.Context, text string) {
	h.drained.Do(func() { h.drainAll(ctx, text) })
}

func (h *Host) drainAll(ctx context.Context, text string) {
	h.mu.Lock()
	h.draining = true
	h.mu.Unlock()
	h.cancel()
	if !returns(h.opening.Wait) {
		h.log.Error("the accept check does not return although its context has ended")
	}
	h.mu.Lock()
	var all []*hosted
	for _, s := range h.sessions {
		all = append(all, s)
	}
	h.mu.Unlock()
	var draining sync.WaitGroup
	for _, s := range all {
		draining.Go(func() { s.Drain(ctx, text) })
	}
	draining.Wait()
	if !returns(h.returning.Wait) {
		h.log.Error("a handler does not return although its context has ended")
	}
}

// returns reports whether wait returns within handlerWait.
func returns(wait func()) bool {
	returned := make(chan struct{})
	go func() { // outlives this only where an author's function never returns
		wait()
		close(returned)
	}()
	select {
	case <-returned:
		return true
	case <-time.After(handlerWait):
		return false
	}
}

// Release drains at once and lets everything go.
func (h *Host) Release() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	h.drain(ctx, "the service is gone")
	h.watch.Close()
}
