package session_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A handler serves methods by name.
type handler struct {
	methods map[string]func(ctx context.Context, m *session.Message) (any, error)
	streams map[string]func(ctx context.Context, s *session.Stream)
}

func (h handler) Serve(ctx context.Context, m *session.Message) (any, error) {
	if f := h.methods[m.Method]; f != nil {
		return f(ctx, m)
	}
	return nil, wire.Errorf(wire.UnknownMethod, "no method %s", m.Method)
}

func (h handler) ServeStream(ctx context.Context, s *session.Stream) error {
	f := h.streams[s.Method()]
	if f == nil {
		return wire.Errorf(wire.UnknownMethod, "no stream %s", s.Method())
	}
	f(ctx, s)
	return nil
}

func echo(_ context.Context, m *session.Message) (any, error) {
	var text string
	err := m.Decode(&text)
	return text, err
}

// sockets returns both ends of a connected pair of Unix sockets.
func sockets(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]*net.UnixConn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// pair returns both ends of a session, which the test closes.
func pair(t *testing.T, client, service session.Config) (c, s *session.Session) {
	t.Helper()
	a, b := sockets(t)
	client.Opener = true
	client.Endpoint, service.Endpoint = "com.example.test", "com.example.test"
	c, err := session.New(a, client)
	if err != nil {
		t.Fatal(err)
	}
	s, err = session.New(b, service)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		s.Close()
		c.Wait()
		s.Wait()
	})
	return c, s
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func wait(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: not within 10 s", what)
	}
}

func TestCallReturnsTheReplyOfAnySize(t *testing.T) {
	c, s := pair(t, session.Config{Handler: handler{methods: map[string]func(context.Context, *session.Message) (any, error){"echo": echo}}},
		session.Config{Handler: handler{methods: map[string]func(context.Context, *session.Message) (any, error){"echo": echo}}})
	for _, size := range []int{0, 1, 1000, 65_000, 65_535, 65_536, 65_600, 300_000, 2 << 20} {
		for _, from := range []*session.Session{c, s} {
			text := strings.Repeat("x", size)
			var reply string
			if err := from.Call(within(t, 10*time.Second), "echo", text, &reply); err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			if reply != text {
				t.Fatalf("%d bytes: reply of %d bytes", size, len(reply))
			}
		}
	}
	if err := c.Call(within(t, time.Second), "echo", strings.Repeat("x", wire.MaxLarge+1), nil); !errors.Is(err, wire.OverQuota) {
		t.Errorf("oversized request: %v, want %v", err, wire.OverQuota)
	}
}

func TestEveryFailureHasItsCodeAndSaysWhetherTheRequestLeft(t *testing.T) {
	block := func(ctx context.Context, _ *session.Message) (any, error) { <-ctx.Done(); return nil, ctx.Err() }
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{methods: map[string]func(context.Context, *session.Message) (any, error){
		"block": block,
		"panic": func(context.Context, *session.Message) (any, error) { panic("oh") },
		"fail":  func(context.Context, *session.Message) (any, error) { return nil, io.ErrNoProgress },
		"conflict": func(context.Context, *session.Message) (any, error) {
			e := wire.Errorf(wire.Conflict, "web is taken")
			e.Holder = &wire.Holder{PID: 42}
			return nil, fmt.Errorf("allocate: %w", e)
		},
		"decode": func(_ context.Context, m *session.Message) (any, error) { return nil, m.Decode(new(int)) },
	}}})
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	canceled, cancelNow := context.WithCancel(t.Context())
	cancelNow()
	for _, test := range []struct {
		method string
		ctx    context.Context
		is     error
		sent   bool
	}{
		{"nothing", t.Context(), wire.UnknownMethod, true},
		{"panic", t.Context(), wire.Internal, true},
		{"fail", t.Context(), wire.Internal, true},
		{"conflict", t.Context(), wire.Conflict, true},
		{"decode", t.Context(), wire.Malformed, true},
		{"block", short, context.DeadlineExceeded, true},
		{"block", canceled, context.Canceled, false},
	} {
		err := c.Call(test.ctx, test.method, "text", nil)
		e, ok := errors.AsType[*wire.Error](err)
		if !ok || !errors.Is(err, test.is) || e.Sent != test.sent {
			t.Errorf("%s: %v (sent %t), want %v (sent %t)", test.method, err, ok && e.Sent, test.is, test.sent)
		}
		if test.method == "conflict" && (e.Holder == nil || e.Holder.PID != 42) {
			t.Errorf("conflict names %v, want pid 42", e.Holder)
		}
	}
	if err := c.Call(within(t, time.Second), "nothing", nil, nil); !errors.Is(err, wire.UnknownMethod) {
		t.Errorf("the session is not whole afterwards: %v", err)
	}
}

func TestCancellingACallCancelsItsHandler(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{methods: map[string]func(context.Context, *session.Message) (any, error){
		"block": func(ctx context.Context, _ *session.Message) (any, error) {
			close(began)
			<-ctx.Done()
			close(ended)
			return nil, ctx.Err()
		},
	}}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if err := c.Call(ctx, "block", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("call: %v, want canceled", err)
	}
	wait(t, "the handler's context ends", ended)
}

func TestOneWayMessagesAreHandledInOrderBeforeLaterRequests(t *testing.T) {
	var next atomic.Int64
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{methods: map[string]func(context.Context, *session.Message) (any, error){
		"tell": func(_ context.Context, m *session.Message) (any, error) {
			var n int64
			if err := m.Decode(&n); err != nil {
				return nil, err
			}
			if !next.CompareAndSwap(n, n+1) {
				t.Errorf("message %d came when %d was due", n, next.Load())
			}
			return nil, nil
		},
		"count": func(context.Context, *session.Message) (any, error) { return next.Load(), nil },
	}}})
	for i := range int64(2000) { // far more than the credit
		if err := c.Send(within(t, 10*time.Second), "tell", i); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			var n int64
			if err := c.Call(within(t, 10*time.Second), "count", nil, &n); err != nil || n != i+1 {
				t.Fatalf("count after %d: %d, %v", i, n, err)
			}
		}
	}
}

func TestTheEndComesOnceAndSaysWhoAndWhy(t *testing.T) {
	for _, test := range []struct {
		name            string
		act             func(c, s *session.Session)
		client, service wire.End
	}{
		{"client closes", func(c, _ *session.Session) { c.Close() },
			wire.End{Code: wire.Invalid, Origin: wire.Local}, wire.End{Code: wire.Invalid, Origin: wire.Peer}},
		{"instance closes", func(_, s *session.Session) { s.Close() },
			wire.End{Code: wire.Interrupted, Origin: wire.Peer}, wire.End{Code: wire.Invalid, Origin: wire.Local}},
		{"instance drains", func(_, s *session.Session) { s.Drain(context.Background(), "stopping") },
			wire.End{Code: wire.Interrupted, Origin: wire.Peer}, wire.End{Code: wire.Terminating, Origin: wire.Local}},
		{"instance is lost", func(_, s *session.Session) { s.Abort(wire.End{Code: wire.Invalid, Origin: wire.Local}) },
			wire.End{Code: wire.Interrupted, Origin: wire.Peer}, wire.End{Code: wire.Invalid, Origin: wire.Local}},
		{"the broker ends it", func(_, s *session.Session) {
			s.Shutdown(context.Background(), wire.End{Code: wire.Interrupted, Origin: wire.Broker, Text: "operator"})
		}, wire.End{Code: wire.Interrupted, Origin: wire.Broker}, wire.End{Code: wire.Interrupted, Origin: wire.Broker}},
		{"both close", func(c, s *session.Session) {
			done := make(chan struct{})
			go func() { c.Close(); close(done) }()
			s.Close()
			<-done
		}, wire.End{}, wire.End{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, s := pair(t, session.Config{}, session.Config{})
			began := time.Now()
			test.act(c, s)
			for _, side := range []struct {
				s    *session.Session
				want wire.End
			}{{c, test.client}, {s, test.service}} {
				wait(t, "the end", side.s.Done())
				got := side.s.End()
				if got.Text = ""; side.want != (wire.End{}) && got != side.want {
					t.Errorf("end %+v, want %+v", got, side.want)
				}
				late := make(chan struct{})
				side.s.OnEnd(func(wire.End) { close(late) })
				wait(t, "a late listener", late)
			}
			if d := time.Since(began); d > 4*time.Second {
				t.Errorf("took %v: somebody waited for the watchdog", d)
			}
		})
	}
}

func TestStreamsCarryBytesBothWaysAndEndOnlyByTheirEnd(t *testing.T) {
	c, s := pair(t, session.Config{}, session.Config{Handler: handler{streams: map[string]func(context.Context, *session.Stream){
		"echo": func(_ context.Context, st *session.Stream) { io.Copy(st, st); st.CloseWrite() },
		"drop": func(_ context.Context, st *session.Stream) { st.Write([]byte("half")) },
	}}})
	st, err := c.OpenStream(within(t, time.Second), "echo")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	go func() { st.Write(data); st.CloseWrite() }()
	got, err := io.ReadAll(st)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("read %d bytes, %v", len(got), err)
	}
	drop, err := c.OpenStream(within(t, time.Second), "drop")
	if err != nil {
		t.Fatal(err)
	}
	defer drop.Close()
	if got, err := io.ReadAll(drop); string(got) != "half" || !errors.Is(err, wire.Interrupted) {
		t.Errorf("dropped stream: %q, %v, want half and %v", got, err, wire.Interrupted)
	}
	none, err := s.OpenStream(within(t, time.Second), "any")
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	if _, err := none.Read(make([]byte, 1)); !errors.Is(err, wire.UnknownMethod) {
		t.Errorf("stream to a side that serves none: %v, want %v", err, wire.UnknownMethod)
	}
}

func TestFactsOfBothSidesAreShownAndBounded(t *testing.T) {
	c, s := pair(t, session.Config{}, session.Config{Handler: handler{methods: map[string]func(context.Context, *session.Message) (any, error){"echo": echo}}})
	if err := c.SetFact("container", "web"); err != nil {
		t.Fatal(err)
	}
	s.SetFact("lease", "10.0.0.2")
	c.Call(within(t, time.Second), "echo", "", nil) // what was sent before has come
	in := s.Inspect()
	if in.PeerFacts["container"] != "web" || in.Facts["lease"] != "10.0.0.2" {
		t.Errorf("facts %v and %v", in.Facts, in.PeerFacts)
	}
	if err := c.SetFact("long", strings.Repeat("x", wire.MaxFact+1)); !errors.Is(err, wire.OverQuota) {
		t.Errorf("oversized fact: %v, want %v", err, wire.OverQuota)
	}
	for i := range wire.MaxFacts - 1 {
		if err := c.SetFact(fmt.Sprint(i), ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.SetFact("one more", ""); !errors.Is(err, wire.OverQuota) {
		t.Errorf("fact %d: %v, want %v", wire.MaxFacts+1, err, wire.OverQuota)
	}
}
