// Package session is the session between a client and an instance: calls, one-way messages, notices and streams in both directions over one
// socket, and an end that comes once and says who ended it and why.
//
// A session has a link, which carries the frames of its message channel: the lane, which is the socket itself, or the first yamux stream. On
// the lane one reader tells frames of the channel from those of yamux, which starts with the first stream that somebody opens.
//
//	reader ──▶ replies: to the waiting Call
//	       ──▶ frames of streams: yamux
//	       ──▶ requests: their handlers, on the reader or on a goroutine of their own
//	       ──▶ one-way messages, and requests behind them: inbox ──▶ taker ──▶ handlers
//	Call, Send, handlers ──▶ link, at once, or outbox ──▶ writer ──▶ link
//
// The states of a session are open, terminating (one side takes no new requests, and still answers those in flight) and ended.
// They only go forward; closing ends a session here at once, and lets its transport go when the peer has read all.
package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fairlead-dev/fairlead/internal/watch"
	"github.com/fairlead-dev/fairlead/wire"
)

// closeWait bounds how long a closed session waits for its peer to have read all.
const closeWait = 5 * time.Second

// A Handler takes what the peer sends. Its methods run on goroutines of the session and must return when their context ends.
type Handler interface {
	// Serve answers a request, or takes a one-way message, whose result is then dropped. The method's name has not been checked. Requests are served beside
	// each other: one whose method was quick the last time begins on the goroutine that reads the session, and holds up what comes behind it for 5 ms at most.
	// So Serve leaves its goroutine as it found it: one that it has locked to its thread (runtime.LockOSThread) serves others after it.
	Serve(ctx context.Context, m *Message) (reply any, err error)
	// ServeStream serves a raw stream or a streaming call, which is closed when it returns. An error is what the peer then reads. Its context ends also when the
	// peer lets go of the stream; what the peer wrote before can still be read.
	ServeStream(ctx context.Context, s *Stream) error
}

// A Config says what a session is before it begins.
type Config struct {
	ID       string       // the session's id; see NewID
	Endpoint string       // the endpoint that was opened
	Title    string       // what the client calls the session, for people
	Opener   bool         // this side opened it: it is the client, and the yamux client
	Peer     wire.Process // the other side; see Session.Peer
	Handler  Handler      // nil: every request is answered with wire.UnknownMethod
	Send     wire.Limits  // what the peer accepts of this side; zero: wire.DefaultLimits
	Receive  wire.Limits  // what this side accepts of the peer; zero: wire.DefaultLimits
	Origin   wire.Origin  // where Close's end arises for the peer; zero: wire.Peer
	Logger   *slog.Logger // zero: nothing is logged
	Idle     *watch.Set   // where the session waits when nothing has come for some seconds, if it has a lane and is on a socket; nil: on a goroutine of its own
	// Lane says that both sides have agreed on the lane, see Offer. The connection must then have a method CloseWrite() error.
	Lane bool
}

// A Session is one end of a session. All methods may be called from any goroutine.
type Session struct {
	conf    Config
	conn    *conn
	mux     mux
	started time.Time
	// streamless is true of a control connection: it is a lane and nothing else.
	streamless bool
	ctx        context.Context // ends with the session, its cause is the end
	cancel     context.CancelCauseFunc
	done       chan struct{}
	out        outbox
	bodies     bodies
	held       budget  // memory, for the peer
	calls      *credit // for requests to the peer
	oneWay     *credit // for one-way messages to the peer

	own      sync.WaitGroup // reader, writer, acceptor
	handlers sync.WaitGroup // taker, handlers, streams
	shut     sync.Once
	setting  sync.Mutex     // of facts
	arriving sync.WaitGroup // large replies that are being received
	opening  atomic.Int64   // streams that are being opened
	encoding sync.Mutex     // of a reply: nobody knows before how large it is, and with one that waits to leave two are in memory
	stats    stats

	released atomic.Bool // the transport was let go here
	letGo    atomic.Bool // the peer let go of it before

	forsaking sync.Once
	forsaken  chan struct{} // closed when a large body that has not begun will not come, or is not waited for

	mu          sync.Mutex
	link        link // nil until the message channel is there
	ended       *wire.End
	hooks       []func(wire.End)
	draining    bool // this side takes no new requests
	terminating bool // the peer takes no new requests
	idle        chan struct{}
	nextID      uint32
	pending     map[uint32]*pending // requests that left here and are not yet answered
	serving     map[uint32]*Message // requests of the peer that are not yet answered
	large       map[string]int      // how long the last reply was of methods whose was large
	turns       chan struct{}       // of large replies that are being sent; see semaphore
	openingTurn chan struct{}       // of who may wait for yamux to open a stream; likewise
	answering   int                 // of these, and of those whose reply is leaving
	asked       load                // of the requests being served
	reader      reader
	inbox       []*Message // bounded by the credit given
	unhandled   int64      // one-way messages in the inbox or with a handler
	told        load       // of these
	taking      bool
	facts       map[string]string
	peerFacts   map[string]string
	streams     map[*Stream]struct{}
	served      int // streams of the peer whose first frame is there
}

type stats struct {
	received, sent     atomic.Int64 // bytes, where the link counts them
	callsMade, callsIn atomic.Int64
	late               atomic.Int64 // replies that nobody waited for any more
}

// NewID returns a new session's id: 128 random bits as 32 hexadecimal digits.
func NewID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Offer returns the features that this side offers when a session is opened. FAIRLEAD_LANE=0 in the environment takes the lane out.
func Offer() []string {
	if os.Getenv("FAIRLEAD_LANE") == "0" {
		return nil
	}
	return []string{wire.FeatureLane}
}

// New begins a session on conn, which it owns from now on, also when it fails.
func New(conn net.Conn, c Config) (*Session, error) {
	s := create(conn, c)
	s.traceBegin()
	if _, halves := conn.(halfCloser); c.Lane && !halves {
		s.release()
		return nil, wire.Errorf(wire.Unsupported, "begin a session: a lane needs a connection with CloseWrite")
	}
	if c.Lane {
		s.link = laneLink{s.conn}
		s.out.open(s.link)
		s.beginReading()
		return s, nil
	}
	err := s.mux.start(s.spawn)
	if err == nil {
		s.own.Go(s.pump)
		if c.Opener {
			err = s.establish() // the message channel is the first stream, before anybody can open another
		}
	}
	if err != nil {
		s.release()
		return nil, fmt.Errorf("begin a session: %w", err)
	}
	s.beginReading()
	return s, nil
}

// NewControl begins a session that is a lane and has no streams on conn, which it owns from now on. The frames in first leave before all others.
func NewControl(conn *net.UnixConn, c Config, first ...wire.Frame) *Session {
	c.Lane = true
	s := create(conn, c)
	s.traceBegin()
	s.streamless = true
	s.link = laneLink{s.conn}
	for _, f := range first {
		s.out.pushNow(&outgoing{frame: f})
	}
	s.out.open(s.link)
	s.beginReading()
	return s
}

func create(under net.Conn, c Config) *Session {
	c.Send, c.Receive = c.Send.OrDefault(), c.Receive.OrDefault()
	c.Origin = cmp.Or(c.Origin, wire.Peer)
	s := &Session{
		conf:    c,
		started: time.Now(),
		done:    make(chan struct{}),
		calls:   newCredit(c.Send.Calls, c.Send),
		oneWay:  newCredit(c.Send.OneWay, c.Send.OfOneWay()),
		serving: map[uint32]*Message{},
	}
	ctx := context.WithValue(context.Background(), sessionKey{}, s)
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.held.limit(c.Receive)
	s.out.init(s)
	s.forsaken = make(chan struct{})
	s.conn = newConn(under, &s.stats, &s.held, c.Opener)
	s.mux.init(s)
	s.conn.in.init(s.conn, &s.mux, c.Lane)
	return s
}

type sessionKey struct{}

// FromContext returns the session that a handler's context belongs to, or nil.
func FromContext(ctx context.Context) *Session {
	s, _ := ctx.Value(sessionKey{}).(*Session)
	return s
}

// ShortID returns the prefix of a session's id that people are shown.
func ShortID(id string) string { return id[:min(len(id), 8)] }

// ID returns the session's id.
func (s *Session) ID() string { return s.conf.ID }

// Endpoint returns the name of the endpoint that was opened.
func (s *Session) Endpoint() string { return s.conf.Endpoint }

// Title returns what the client calls the session; it may hold anything.
func (s *Session) Title() string { return s.conf.Title }

// Peer returns who is at the other end: to an instance its client, as the kernel says of the session's socket; to a client its instance, as that says of itself, for
// people. It is zero where that has said nothing.
func (s *Session) Peer() wire.Process { return s.conf.Peer }

// Started returns when this end of the session began.
func (s *Session) Started() time.Time { return s.started }

// SyscallConn gives access to the session's socket, to ask the kernel about it. It must not be read, written or closed.
func (s *Session) SyscallConn() (syscall.RawConn, error) {
	return s.conn.SyscallConn()
}

// Context returns a context that ends with the session; its cause is the end's error.
func (s *Session) Context() context.Context { return s.ctx }

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// End returns who ended the session and why. It is zero until Done is closed.
func (s *Session) End() wire.End {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		return wire.End{}
	}
	return *s.ended
}

// OnEnd has f called once when the session ends, or at once if it has. A peer that closed the session returns from its Close only after
// f has returned, so f must neither wait for the peer nor close the session.
func (s *Session) OnEnd(f func(wire.End)) {
	s.mu.Lock()
	ended := s.ended
	if ended == nil {
		s.hooks = append(s.hooks, f)
	}
	s.mu.Unlock()
	if ended != nil {
		f(*ended)
	}
}

// SetFact attaches a fact to this side of the session, for whoever inspects it. It fails with wire.OverQuota beyond wire.MaxFacts facts of
// wire.MaxFact bytes.
func (s *Session) SetFact(name, value string) error {
	s.setting.Lock() // so that the peer is told of the last facts last
	defer s.setting.Unlock()
	s.mu.Lock()
	facts := maps.Clone(s.facts)
	if facts == nil {
		facts = map[string]string{}
	}
	facts[name] = value
	err := wire.CheckFacts(facts)
	if err == nil {
		s.facts = facts
	}
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("set a fact: %w", err)
	}
	f, err := wire.NewFrame(wire.KindNotice, 0, wire.Notice{Name: wire.NoticeFacts, Facts: facts})
	if err == nil {
		s.out.pushFacts(f)
	}
	return err
}

// log returns the session's logger, which is made when something is to be told.
func (s *Session) log() *slog.Logger {
	under := s.conf.Logger
	if under == nil {
		under = slog.New(slog.DiscardHandler)
	}
	return under.With("session", ShortID(s.conf.ID), "endpoint", s.conf.Endpoint)
}

// semaphore returns a channel that takes so many, which is made when somebody needs it.
func (s *Session) semaphore(ch *chan struct{}, most int) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *ch == nil {
		*ch = make(chan struct{}, most)
	}
	return *ch
}

// spawn runs f on a goroutine of the session, and reports false if that has ended.
func (s *Session) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return false
	}
	s.own.Go(f)
	return true
}

// notify queues a notice. Notices are few and small, so they wait for nothing.
func (s *Session) notify(n wire.Notice) error {
	f, err := wire.NewFrame(wire.KindNotice, 0, n)
	if err != nil {
		return err
	}
	s.out.pushNow(&outgoing{frame: f})
	return nil
}
