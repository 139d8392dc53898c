package session_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// A carried message has descriptors.
type carried struct {
	N     int64      `msgpack:"n"`
	Text  string     `msgpack:"t"`
	Files []*os.File `msgpack:"f"`
}

// lanes returns both ends of a session with a lane, which the test closes.
func lanes(t testing.TB, client, service session.Config) (c, s *session.Session) {
	t.Helper()
	client.Lane, service.Lane = true, true
	return paired(t, client, service)
}

// numbered returns a file that holds a number.
func numbered(t testing.TB, n int64) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(w, n)
	w.Close()
	return r
}

// number reads the number that a file holds, checks that it is close-on-exec, and closes it.
func number(t testing.TB, f *os.File) (n int64) {
	t.Helper()
	if _, err := fmt.Fscan(f, &n); err != nil {
		t.Error(err)
	}
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor with flags %#x, %v", flags, err)
	}
	f.Close()
	return n
}

func TestDescriptorsComeWithTheirMessagesInOrder(t *testing.T) {
	const n = 600 // more than the credit
	var next atomic.Int64
	c, _ := lanes(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"take": func(_ context.Context, m *session.Message) (any, error) {
			var got carried
			if err := m.Decode(&got); err != nil {
				return nil, err
			}
			if len(got.Files) != int(got.N%3) {
				t.Errorf("message %d: %d descriptors", got.N, len(got.Files))
			}
			for _, f := range got.Files {
				if is := number(t, f); is != got.N {
					t.Errorf("message %d came with descriptor %d", got.N, is)
				}
			}
			if !next.CompareAndSwap(got.N, got.N+1) {
				t.Errorf("message %d came when %d was due", got.N, next.Load())
			}
			if err := m.Decode(&carried{}); got.N%3 > 0 && !errors.Is(err, wire.Malformed) {
				t.Errorf("descriptors were given twice: %v", err)
			}
			return nil, nil
		},
	}}})
	for i := range int64(n) {
		message := carried{N: i}
		for range i % 3 {
			message.Files = append(message.Files, numbered(t, i))
		}
		if err := c.Send(within(t, 10*time.Second), "take", message); err != nil {
			t.Fatal(err)
		}
		socket.CloseFiles(message.Files)
	}
	if err := c.Flush(within(t, 10*time.Second)); err != nil || next.Load() != n {
		t.Errorf("%d of %d were taken, %v", next.Load(), n, err)
	}
}

// swap replies with the descriptors that it is given, in reverse.
func swap(_ context.Context, m *session.Message) (any, error) {
	var got carried
	err := m.Decode(&got)
	for i, j := 0, len(got.Files)-1; i < j; i, j = i+1, j-1 {
		got.Files[i], got.Files[j] = got.Files[j], got.Files[i]
	}
	return got, err
}

func TestDescriptorsTravelInRequestsAndRepliesOfAnySizeAndBothWays(t *testing.T) {
	h := handler{methods: methods{"swap": swap}}
	c, s := lanes(t, session.Config{Handler: h}, session.Config{Handler: h})
	for _, size := range []int{0, 1000, 60_000, 70_000, 1 << 20} {
		for _, from := range []*session.Session{c, s} {
			sent := carried{Text: string(make([]byte, size))}
			for i := range wire.MaxFiles {
				sent.Files = append(sent.Files, numbered(t, int64(i)))
			}
			var got carried
			if err := from.Call(within(t, 10*time.Second), "swap", sent, &got); err != nil || got.Text != sent.Text || len(got.Files) != wire.MaxFiles {
				t.Fatalf("%d bytes: %d bytes, %d descriptors, %v", size, len(got.Text), len(got.Files), err)
			}
			for i, f := range got.Files {
				if n := number(t, f); int(n) != wire.MaxFiles-1-i {
					t.Errorf("%d bytes: descriptor %d is number %d", size, i, n)
				}
			}
			for _, f := range sent.Files {
				if _, err := f.Stat(); err != nil {
					t.Errorf("the caller's own descriptor: %v", err)
				}
			}
			socket.CloseFiles(sent.Files)
		}
	}
}

func TestDescriptorsThatNobodyTakesAreClosed(t *testing.T) {
	begun, released := make(chan struct{}), make(chan struct{})
	c, _ := lanes(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"ignore": ignore, "panic": panics, "swap": swap,
		"late": func(ctx context.Context, m *session.Message) (any, error) {
			close(begun)
			<-released
			return swap(ctx, m)
		},
	}}})
	f := numbered(t, 1)
	defer f.Close()
	files := carried{Files: []*os.File{f, f, f}}
	before := len(descriptors())
	for range 100 {
		for method, want := range map[string]error{"ignore": nil, "panic": wire.Internal, "nothing": wire.UnknownMethod, "swap": nil} {
			if err := c.Send(within(t, 10*time.Second), method, files); err != nil {
				t.Fatal(err)
			}
			if err := c.Call(within(t, 10*time.Second), method, files, nil); want == nil && err != nil || !errors.Is(err, want) {
				t.Fatalf("%s: %v, want %v", method, err, want)
			}
		}
	}
	short, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	if err := c.Call(short, "late", files, &carried{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
	close(released)
	until(t, "the late reply", func() bool { return c.Inspect().LateReplies == 1 })
	until(t, "all descriptors are closed", func() bool { return len(descriptors()) <= before })
}

func TestDescriptorsThatCannotBeSentAreTheCallersAndTheSessionIsWhole(t *testing.T) {
	c, _ := lanes(t, session.Config{}, session.Config{Handler: usual})
	f := numbered(t, 0)
	defer f.Close()
	closed := numbered(t, 0)
	closed.Close()
	for name, test := range map[string]struct {
		method string
		files  []*os.File
		want   error
	}{
		"one too many": {"ignore", files(f, wire.MaxFiles+1), wire.OverQuota},
		"no method":    {"", files(f, 1), wire.Malformed},
		"closed":       {"ignore", []*os.File{f, closed}, wire.Malformed},
	} {
		before := len(descriptors())
		message := carried{Files: test.files}
		if err := c.Send(within(t, time.Second), test.method, message); !errors.Is(err, test.want) {
			t.Errorf("send, %s: %v, want %v", name, err, test.want)
		}
		if err := c.Call(within(t, time.Second), test.method, message, nil); !errors.Is(err, test.want) {
			t.Errorf("call, %s: %v, want %v", name, err, test.want)
		}
		if n := len(descriptors()); n != before {
			t.Errorf("%s: %d descriptors are open, and before %d", name, n, before)
		}
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for c.Send(canceled, "ignore", carried{Files: files(f, 1)}) == nil {
	}
	if err := c.Call(within(t, time.Second), "echo", "", nil); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	c.Close()
	if err := c.Send(within(t, time.Second), "ignore", carried{Files: files(f, 1)}); !errors.Is(err, wire.Invalid) {
		t.Errorf("after the end: %v, want %v", err, wire.Invalid)
	}
}

// files returns f n times.
func files(f *os.File, n int) (list []*os.File) {
	for range n {
		list = append(list, f)
	}
	return list
}

func TestASessionWithoutALaneSaysThatItCarriesNoDescriptors(t *testing.T) {
	h := handler{methods: methods{"give": func(context.Context, *session.Message) (any, error) {
		return carried{Files: []*os.File{numbered(t, 0)}}, nil
	}}}
	c, _ := paired(t, session.Config{}, session.Config{Handler: h})
	f := numbered(t, 0)
	defer f.Close()
	if err := c.Send(within(t, time.Second), "ignore", carried{Files: files(f, 1)}); !errors.Is(err, wire.Unsupported) {
		t.Errorf("send: %v, want %v", err, wire.Unsupported)
	}
	if err := c.Call(within(t, time.Second), "ignore", carried{Files: files(f, 1)}, nil); !errors.Is(err, wire.Unsupported) {
		t.Errorf("call: %v, want %v", err, wire.Unsupported)
	}
	if err := c.Call(within(t, time.Second), "give", nil, &carried{}); !errors.Is(err, wire.Unsupported) {
		t.Errorf("reply: %v, want %v", err, wire.Unsupported)
	}
	if err := c.Call(within(t, time.Second), "give", carried{}, nil); !errors.Is(err, wire.Unsupported) {
		t.Errorf("a value without any: %v, want the reply's %v", err, wire.Unsupported)
	}
}

func TestNoMoreDescriptorsAreOnTheirWayThanThePeerTakes(t *testing.T) {
	hold := make(chan struct{})
	c, _ := lanes(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"hold": func(context.Context, *session.Message) (any, error) { <-hold; return nil, nil },
	}}})
	f := numbered(t, 0)
	defer f.Close()
	four := carried{Files: files(f, 4)}
	for range wire.DefaultLimits.Files / 4 {
		if err := c.Send(within(t, time.Second), "hold", four); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Send(within(t, 50*time.Millisecond), "hold", carried{Files: files(f, 1)}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a descriptor more: %v, want %v", err, context.DeadlineExceeded)
	}
	if err := c.Send(within(t, time.Second), "hold", nil); err != nil {
		t.Errorf("a message without any: %v", err)
	}
	close(hold)
	if err := c.Send(within(t, 10*time.Second), "hold", carried{Files: files(f, wire.MaxFiles)}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestDescriptorsStillQueuedAtTheEndAreClosed(t *testing.T) {
	hold := make(chan struct{})
	c, s := lanes(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"hold": func(context.Context, *session.Message) (any, error) { <-hold; return nil, nil },
	}}})
	f := numbered(t, 0)
	defer f.Close()
	for range wire.DefaultLimits.Files { // in the peer's inbox
		if err := c.Send(within(t, time.Second), "hold", carried{Files: files(f, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	s.Abort(wire.End{Code: wire.Invalid, Origin: wire.Local})
	wait(t, "the end", c.Done())
	close(hold)
}
