package services

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

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
	// acceptWait bounds how long a client may take to be told that it is accepted.
	acceptWait = 10 * time.Second
	// exitGrace is how long after its client's exit a session may still read what the client had written, if its socket is kept open by another process.
	exitGrace = 100 * time.Millisecond
	// handlerWait bounds how long a stopping service waits for a handler whose context has ended.
	handlerWait = 5 * time.Second
	// maxEnded is how many ended sessions are kept until a broker has been told of them; older ones are dropped first.
	maxEnded = 1000
)

// A Host holds the live sessions of one instance: it takes connections that a broker hands over. Servers have one, and so has the broker for its own
// endpoint; authors need none of their own.
type Host struct {
	conf  Server
	log   *slog.Logger
	watch *watch.Set // of the clients' processes
	news  chan struct{}

	opening sync.WaitGroup

	mu       sync.Mutex
	sessions map[string]*hosted
	ended    []wire.SessionInfo // not yet told
	opened   []wire.SessionInfo // not yet told
	draining bool
}

// A hosted session is one of a Host's, with what it is told as.
type hosted struct {
	*session.Session
	info   wire.SessionInfo
	client *process.Handle // nil where the kernel gave none
	watch  *watch.Watch
}

// NewHost returns a Host for the endpoints of a Server. It must be closed.
func NewHost(s Server) (*Host, error) {
	set, err := watch.New()
	if err != nil {
		return nil, fmt.Errorf("watch clients: %w", err)
	}
	logger := s.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Host{conf: s, log: logger, watch: set, news: make(chan struct{}, 1), sessions: map[string]*hosted{}}, nil
}

// HandOver takes a client's connection, which it owns from now on, and opens the session in the background.
func (h *Host) HandOver(o wire.HandOver, conn *net.UnixConn) {
	h.mu.Lock()
	if !h.draining {
		h.opening.Go(func() { h.open(o, conn) })
		h.mu.Unlock()
		return
	}
	h.mu.Unlock()
	h.refuse(o, conn, wire.Errorf(wire.Terminating, "the service is being stopped"))
}

// open accepts or refuses a session and begins it.
func (h *Host) open(o wire.HandOver, conn *net.UnixConn) {
	conn.SetDeadline(time.Now().Add(acceptWait))
	client, peer, err := identify(o, conn)
	if err != nil {
		h.refuse(o, conn, err)
		return
	}
	opening := Opening{Session: o.Session, Endpoint: o.Endpoint, Title: o.Title, Client: peer}
	mux := h.conf.Endpoints[o.Endpoint]
	if mux == nil {
		err = wire.Errorf(wire.UnknownEndpoint, "this instance does not serve %s", o.Endpoint)
	} else if h.conf.Accept != nil {
		err = h.conf.Accept(opening)
	}
	if err == nil {
		err = h.accept(o, conn, mux, client, peer)
	}
	if err != nil {
		client.Close()
		h.refuse(o, conn, err)
	}
}

// accept tells the client that it is accepted, and begins the session.
func (h *Host) accept(o wire.HandOver, conn *net.UnixConn, mux *Mux, client *process.Handle, peer wire.Process) error {
	limits := h.conf.Limits.OrDefault()
	f, err := wire.NewFrame(wire.KindAccepted, 0, wire.Accepted{Limits: limits})
	if err == nil {
		err = socket.WriteFrame(conn, f)
	}
	if err != nil {
		return err
	}
	conn.SetDeadline(time.Time{})
	s, err := session.New(conn, session.Config{
		ID: o.Session, Endpoint: o.Endpoint, Title: o.Title, Peer: peer,
		Handler: mux, Send: o.Limits, Receive: limits, Logger: h.log,
	})
	if err != nil {
		return err
	}
	h.add(&hosted{Session: s, client: client, info: wire.SessionInfo{
		ID: o.Session, Endpoint: o.Endpoint, Title: o.Title, OpenedAt: s.Started().UnixNano(), Client: peer,
	}})
	return nil
}

// identify takes the client's identity from its socket. What it is called comes from the broker, who saw it first.
func identify(o wire.HandOver, conn *net.UnixConn) (*process.Handle, wire.Process, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, wire.Process{}, err
	}
	client, cred, err := process.FromPeer(raw)
	if err != nil && !errors.Is(err, process.ErrGone) && cred.PID != 0 {
		return nil, wire.Process{}, fmt.Errorf("identify a client: %w", err)
	}
	return client, wire.Process{PID: cred.PID, UID: cred.UID, GID: cred.GID, Program: o.Client.Program}, nil
}

// add enters a session that has begun, and has it leave when it ends.
func (h *Host) add(s *hosted) {
	if s.client != nil {
		raw, err := s.client.SyscallConn()
		if err == nil {
			s.watch, err = h.watch.Add(raw, watch.Process, func() { h.exited(s) })
		}
		if err != nil { // its socket still tells
			h.log.Warn("cannot watch a client's process", "session", session.ShortID(s.ID()), "peer", s.info.Client.PID, "err", err)
		}
	}
	h.mu.Lock()
	h.sessions[s.ID()] = s
	h.opened = append(h.opened, s.info)
	h.mu.Unlock()
	h.tell()
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

// left takes a session that has ended out.
func (h *Host) left(s *hosted, end wire.End) {
	if s.watch != nil {
		h.watch.Remove(s.watch)
	}
	s.client.Close()
	info := s.info
	info.ClosedAt, info.End = time.Now().UnixNano(), &end
	h.mu.Lock()
	delete(h.sessions, s.ID())
	h.mu.Unlock()
	h.report(info)
}

// report keeps the news of an ended session until it has been told.
func (h *Host) report(info wire.SessionInfo) {
	h.mu.Lock()
	h.ended = append(h.ended, info)
	if over := len(h.ended) - maxEnded; over > 0 {
		h.ended = h.ended[over:]
	}
	h.mu.Unlock()
	h.tell()
}

func (h *Host) tell() {
	select {
	case h.news <- struct{}{}:
	default:
	}
}

// refuse tells a client why it gets no session, and the broker that there is none.
func (h *Host) refuse(o wire.HandOver, conn *net.UnixConn, err error) {
	defer conn.Close()
	e := *wire.AsError(err)
	if e.Code == wire.Internal {
		e.Code = wire.Refused
	}
	e.Text = e.Text[:min(len(e.Text), wire.MaxText)]
	if f, err := wire.NewFrame(wire.KindRefused, 0, &e); err == nil {
		conn.SetWriteDeadline(time.Now().Add(time.Second))
		socket.WriteFrame(conn, f)
	}
	h.Lost(o, wire.End{Code: e.Code, Origin: wire.Local, Text: e.Text})
}

// Lost reports a hand-over that became no session.
func (h *Host) Lost(o wire.HandOver, end wire.End) {
	now := time.Now().UnixNano()
	h.report(wire.SessionInfo{ID: o.Session, Endpoint: o.Endpoint, Title: o.Title, OpenedAt: now, ClosedAt: now, End: &end, Client: o.Client})
}

// News is sent to when there is something to take with Take.
func (h *Host) News() <-chan struct{} { return h.news }

// Take takes at most wire.MaxBatch sessions that opened or ended and were not yet told, those that opened first.
func (h *Host) Take() []wire.SessionInfo {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := min(len(h.opened), wire.MaxBatch)
	m := min(len(h.ended), wire.MaxBatch-n)
	batch := append(append([]wire.SessionInfo{}, h.opened[:n]...), h.ended[:m]...)
	h.opened, h.ended = h.opened[n:], h.ended[m:]
	return batch
}

// Again has all live sessions told again, and those ended that are given back: for a new broker.
func (h *Host) Again(untold []wire.SessionInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.opened = h.opened[:0]
	for _, s := range h.sessions {
		h.opened = append(h.opened, s.info)
	}
	for _, info := range untold {
		if info.End != nil {
			h.ended = append(h.ended, info)
		}
	}
}

// Inspect returns what a session looks like now. It fails with wire.NotFound.
func (h *Host) Inspect(id string) (wire.Inspection, error) {
	s, err := h.find(id)
	if err != nil {
		return wire.Inspection{}, err
	}
	return s.Inspect(), nil
}

// Close ends a session for the broker, and returns when its client has been told, or ctx ends. It fails with wire.NotFound.
func (h *Host) Close(ctx context.Context, id, text string) error {
	s, err := h.find(id)
	if err != nil {
		return err
	}
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

// Drain refuses further connections, drains all sessions at the same time, and returns when they have ended, or soon after ctx has.
func (h *Host) Drain(ctx context.Context, text string) {
	h.mu.Lock()
	h.draining = true
	h.mu.Unlock()
	h.opening.Wait()
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
	for _, s := range all {
		h.await(s)
	}
}

// await waits for a session's handlers to return, as they must when their context ends.
func (h *Host) await(s *hosted) {
	done := make(chan struct{})
	go func() { s.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(handlerWait):
		h.log.Error("a handler does not return although its context has ended", "session", session.ShortID(s.ID()), "endpoint", s.Endpoint())
	}
}

// Release drains at once and lets everything go.
func (h *Host) Release() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	h.Drain(ctx, "the service is gone")
	h.watch.Close()
}
