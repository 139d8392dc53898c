// Package brokertest has what the tests of a service or a client need: a broker in the test's own process, and peers that can be killed.
//
// Everything that it starts ends with the test.
package brokertest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

const (
	patience     = 10 * time.Second // bounds every wait of this package but one
	stopPatience = 30 * time.Second // for a broker, which gives its instances their time
)

// A Broker is a broker in the test's own process, at a socket in a temporary folder.
type Broker struct {
	// Socket is the path of its socket, for client.Options and services.Server.
	Socket string

	t      testing.TB
	config broker.Config
	stop   func()
}

// Start starts a broker. It starts no services of its own.
func Start(t testing.TB) *Broker {
	t.Helper()
	return StartWith(t, broker.Config{})
}

// StartWith starts a broker with a configuration of the test's own. Where that names no socket, it is in a folder of its own.
func StartWith(t testing.TB, c broker.Config) *Broker {
	t.Helper()
	if c.Socket == "" {
		c.Socket = Socket(t)
	}
	b := &Broker{Socket: c.Socket, t: t, config: c, stop: func() {}}
	b.begin()
	t.Cleanup(b.Stop)
	return b
}

// Socket returns the path of a socket that is not there, in a folder that is removed with the test.
func Socket(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "broker") // t.TempDir may be too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	return filepath.Join(folder, "broker.sock")
}

// At returns the broker at a socket, which is the test's own: only what needs nothing but the socket may be used.
func At(t testing.TB, at string) *Broker { return &Broker{Socket: at, t: t, stop: func() {}} }

// begin has a broker serve.
func (b *Broker) begin() {
	b.t.Helper()
	br, err := broker.New(b.config)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- br.Serve(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-served:
			if err != nil {
				b.t.Errorf("serve: %v", err)
			}
		case <-time.After(stopPatience):
			b.t.Errorf("the broker is not stopped after %v", stopPatience)
		}
	})
}

// Stop stops the broker, and returns when all that it had started has ended. It may be called more than once.
func (b *Broker) Stop() { b.stop() }

// Restart stops the broker, if it is not stopped yet, and starts another one at the same socket. Sessions live on; servers register again in their own time.
func (b *Broker) Restart() {
	b.t.Helper()
	b.stop()
	b.begin()
}

// Dial opens a session. The test fails if it cannot.
func (b *Broker) Dial(endpoint string, o client.Options) *client.Session {
	b.t.Helper()
	o.Socket = b.Socket
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := client.Dial(ctx, endpoint, o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		s.Close()
		s.Wait()
	})
	return s
}

// Sessions returns the sessions that the broker lists. The test fails if it does not.
func (b *Broker) Sessions(r broker.SessionsRequest) []broker.Session {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := client.Dial(ctx, broker.Endpoint, client.Options{Socket: b.Socket})
	if err != nil {
		b.t.Fatal(err)
	}
	defer s.Wait()
	defer s.Close()
	list, err := Sessions(ctx, s, r)
	if err != nil {
		b.t.Fatal(err)
	}
	return list
}

// Sessions returns the sessions that a broker lists for who has a session with it.
func Sessions(ctx context.Context, s *client.Session, r broker.SessionsRequest) (all []broker.Session, err error) {
	parts, err := client.OpenStreaming[broker.Sessions, struct{}](ctx, s, broker.MethodSessions, r)
	if err != nil {
		return nil, err
	}
	defer parts.Close()
	for part, err := range parts.All() {
		if err != nil {
			return nil, err
		}
		all = append(all, part.Sessions...)
	}
	return all, nil
}

// A Service is a server that is registered with a Broker.
type Service struct {
	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	err      error
	sessions []*session.Session
}

// Serve has a server serve, and returns when it is registered. The test fails if it cannot be.
func (b *Broker) Serve(server services.Server) *Service {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &Service{t: b.t, cancel: cancel, done: make(chan struct{})}
	registered := make(chan struct{})
	server.Socket, server.Ready, server.Opened = b.Socket, first(registered, server.Ready), s.watch(server.Opened)
	go func() {
		defer close(s.done)
		s.err = server.Serve(ctx)
	}()
	b.t.Cleanup(func() { s.Stop() })
	select {
	case <-registered:
	case <-s.done:
		b.t.Fatal(s.err)
	case <-time.After(patience):
		b.t.Fatalf("the server is not registered after %v", patience)
	}
	return s
}

// first returns a Ready that closes registered the first time.
func first(registered chan struct{}, ready func()) func() {
	once := sync.OnceFunc(func() { close(registered) })
	return func() {
		once()
		if ready != nil {
			ready()
		}
	}
}

// watch returns an Opened that remembers the sessions.
func (s *Service) watch(opened func(*session.Session)) func(*session.Session) {
	return func(begun *session.Session) {
		s.mu.Lock()
		s.sessions = append(s.sessions, begun)
		s.mu.Unlock()
		if opened != nil {
			opened(begun)
		}
	}
}

// Stop stops the server as the end of its context does: it drains. It returns what Serve returned.
func (s *Service) Stop() error {
	s.cancel()
	<-s.done
	return s.err
}

// Kill ends the server as SIGKILL does: its clients lose their sessions without a word.
func (s *Service) Kill() {
	s.mu.Lock()
	sessions := s.sessions
	s.sessions = nil
	s.mu.Unlock()
	for _, begun := range sessions {
		Kill(begun)
	}
	s.Stop()
}

// Kill ends a session as the SIGKILL of the process on this side does: the other side loses it without a word.
func Kill(s *session.Session) {
	s.Abort(wire.End{Code: wire.Invalid, Origin: wire.Local, Text: "killed by the test"})
}

// Pair returns both ends of a session without any broker: client's end, which serves clientMux, and the service's, which serves serviceMux. Either may be
// nil. It has a lane, as sessions that a broker opens have, unless FAIRLEAD_LANE=0.
func Pair(t testing.TB, endpoint string, serviceMux, clientMux *services.Mux) (clientEnd, serviceEnd *session.Session) {
	t.Helper()
	a, b := sockets(t)
	self := wire.Process{PID: os.Getpid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	conf := session.Config{ID: session.NewID(), Endpoint: endpoint, Peer: self, Lane: slices.Contains(session.Offer(), wire.FeatureLane)}
	clientConf, serviceConf := conf, conf
	clientConf.Opener = true
	if clientMux != nil {
		clientConf.Handler = clientMux
	}
	if serviceMux != nil {
		serviceConf.Handler = serviceMux
	}
	return begin(t, a, clientConf), begin(t, b, serviceConf)
}

// begin begins one end of a session, and ends it with the test.
func begin(t testing.TB, conn net.Conn, c session.Config) *session.Session {
	t.Helper()
	s, err := session.New(conn, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		s.Wait()
	})
	return s
}

func sockets(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := [2]*net.UnixConn{}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		ends[i], err = socket.FromFile(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return ends[0], ends[1]
}
