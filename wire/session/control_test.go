package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// controlPair returns both ends of a control session, which the test closes.
func controlPair(t testing.TB, a, b session.Config) (x, y *session.Session) {
	t.Helper()
	leavesNothing(t)
	left, right := sockets(t)
	a.Opener = true
	a.Endpoint, b.Endpoint = "control", "control"
	x, y = session.NewControl(left, a), session.NewControl(right, b)
	t.Cleanup(func() { closes(t, x, y) })
	return x, y
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

func TestDescriptorsComeWithTheirMessagesInOrder(t *testing.T) {
	const n = 600 // more than the credit
	var next atomic.Int64
	x, _ := controlPair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"take": func(_ context.Context, m *session.Message) (any, error) {
			var want int64
			if err := m.Decode(&want); err != nil {
				return nil, err
			}
			files, err := m.TakeFiles()
			if err != nil || len(files) != int(want%3) {
				t.Errorf("message %d: %d descriptors, %v", want, len(files), err)
			}
			for _, f := range files {
				var got int64
				if _, err := fmt.Fscan(f, &got); err != nil || got != want {
					t.Errorf("message %d came with descriptor %d, %v", want, got, err)
				}
				flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
				if err != nil || flags&unix.FD_CLOEXEC == 0 {
					t.Errorf("message %d: descriptor with flags %#x, %v", want, flags, err)
				}
				f.Close()
			}
			if !next.CompareAndSwap(want, want+1) {
				t.Errorf("message %d came when %d was due", want, next.Load())
			}
			if again, _ := m.TakeFiles(); len(again) != 0 {
				t.Error("descriptors were given twice")
			}
			return nil, nil
		},
		"echo": echo,
	}}})
	for i := range int64(n) {
		var files []*os.File
		for range i % 3 {
			files = append(files, numbered(t, i))
		}
		if err := x.Send(within(t, 10*time.Second), "take", i, files...); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Call(within(t, 10*time.Second), "echo", "", nil); err != nil || next.Load() != n {
		t.Errorf("%d of %d were taken, %v", next.Load(), n, err)
	}
}

func TestTenThousandDescriptorsLeaveNoneBehind(t *testing.T) {
	var handled atomic.Int64
	x, _ := controlPair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"ignore": func(context.Context, *session.Message) (any, error) { handled.Add(1); return nil, nil }, // nobody takes them
		"panic":  panics,
		"echo":   echo,
	}}})
	before := len(descriptors())
	for i := range 2500 {
		var files []*os.File
		for range 4 {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		method := []string{"ignore", "panic", "nothing"}[i%3]
		if err := x.Send(within(t, 10*time.Second), method, nil, files...); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Call(within(t, 10*time.Second), "echo", "", nil); err != nil || handled.Load() != 834 {
		t.Errorf("%d were handled, %v", handled.Load(), err)
	}
	until(t, "all descriptors are closed", func() bool { return len(descriptors()) <= before })
}

func TestDescriptorsThatCannotBeSentAreClosedAndTheSessionIsWhole(t *testing.T) {
	x, _ := controlPair(t, session.Config{}, session.Config{Handler: usual})
	files := func(n int) (list []*os.File) {
		for range n {
			list = append(list, numbered(t, 0))
		}
		return list
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	used := files(1)
	if err := x.Send(within(t, time.Second), "ignore", nil, files(wire.MaxFiles+1)...); !errors.Is(err, wire.OverQuota) {
		t.Errorf("one too many: %v, want %v", err, wire.OverQuota)
	}
	if err := x.Send(within(t, time.Second), "", nil, used...); !errors.Is(err, wire.Malformed) {
		t.Errorf("no method: %v, want %v", err, wire.Malformed)
	}
	if _, err := used[0].Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a file is open after its Send failed: %v", err)
	}
	for x.Send(canceled, "ignore", nil, files(1)...) == nil { // until the credit is used up
	}
	if err := x.Call(within(t, time.Second), "echo", "", nil); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	c, _ := both(t, usual)
	if err := c.Send(within(t, time.Second), "ignore", nil, files(1)...); !errors.Is(err, wire.Unsupported) {
		t.Errorf("on yamux: %v, want %v", err, wire.Unsupported)
	}
	x.Close()
	if err := x.Send(within(t, time.Second), "ignore", nil, files(1)...); !errors.Is(err, wire.Invalid) {
		t.Errorf("after the end: %v, want %v", err, wire.Invalid)
	}
}

func TestAWriteThatCannotSucceedEndsTheSessionAndDoesNotMuteIt(t *testing.T) {
	x, y := controlPair(t, session.Config{}, session.Config{Handler: usual})
	f := numbered(t, 0)
	f.Close()
	if err := x.Send(within(t, time.Second), "ignore", nil, f); err != nil {
		t.Fatal(err) // it is queued, nothing more
	}
	wait(t, "the end", x.Done())
	wait(t, "the peer's end", y.Done())
	if end := x.End(); end.Code != wire.Internal || end.Origin != wire.Local {
		t.Errorf("end %+v", end)
	}
}

func TestDescriptorsStillQueuedAtTheEndAreClosed(t *testing.T) {
	hold := make(chan struct{})
	x, y := controlPair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"hold": func(context.Context, *session.Message) (any, error) { <-hold; return nil, nil },
	}}})
	for range 200 { // in the peer's inbox
		if err := x.Send(within(t, time.Second), "hold", nil, numbered(t, 0)); err != nil {
			t.Fatal(err)
		}
	}
	y.Abort(wire.End{Code: wire.Invalid, Origin: wire.Local})
	wait(t, "the end", x.Done())
	close(hold)
}

func TestAControlSessionAnswersWhatItCannotCarry(t *testing.T) {
	x, y := controlPair(t, session.Config{Handler: usual}, session.Config{Handler: handler{methods: methods{
		"echo": echo,
		"long": func(context.Context, *session.Message) (any, error) { return strings.Repeat("x", wire.MaxBody+1), nil },
	}}})
	if err := x.Call(within(t, 2*time.Second), "echo", strings.Repeat("x", wire.MaxBody+1), nil); !errors.Is(err, wire.OverQuota) {
		t.Errorf("a large request: %v, want %v", err, wire.OverQuota)
	}
	if err := x.Call(within(t, 2*time.Second), "long", nil, nil); !errors.Is(err, wire.OverQuota) {
		t.Errorf("a large reply: %v, want %v", err, wire.OverQuota)
	}
	if _, err := x.OpenStream(within(t, time.Second), "echo"); !errors.Is(err, wire.Unsupported) {
		t.Errorf("a stream: %v, want %v", err, wire.Unsupported)
	}
	for _, from := range []*session.Session{x, y} {
		var reply string
		text := strings.Repeat("x", 65_000)
		if err := from.Call(within(t, 2*time.Second), "echo", text, &reply); err != nil || reply != text {
			t.Errorf("%d bytes, %v", len(reply), err)
		}
	}
}

func TestTheFirstFramesLeaveBeforeAllOthers(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	defer b.Close()
	accepted, err := wire.NewFrame(wire.KindAccepted, 0, wire.Accepted{Limits: wire.DefaultLimits})
	if err != nil {
		t.Fatal(err)
	}
	x := session.NewControl(a, session.Config{Endpoint: "control"}, accepted, accepted)
	defer closes(t, x)
	defer b.Close()
	if err := x.Send(within(t, time.Second), "m", nil); err != nil {
		t.Fatal(err)
	}
	b.SetDeadline(time.Now().Add(5 * time.Second))
	for _, want := range []wire.Kind{wire.KindAccepted, wire.KindAccepted, wire.KindOneWay} {
		if f, _, err := socket.ReadFrame(b); err != nil || f.Kind != want {
			t.Fatalf("%v, %v, want %v", f.Kind, err, want)
		}
	}
}

func TestControlSessionsEndAsOthersDo(t *testing.T) {
	leavesNothing(t)
	for name, act := range map[string]func(x, y *session.Session){
		"close": func(x, _ *session.Session) { x.Close() },
		"drain": func(x, _ *session.Session) { x.Drain(context.Background(), "") },
		"both": func(x, y *session.Session) {
			var all sync.WaitGroup
			defer all.Wait()
			all.Go(func() { x.Close() })
			all.Go(func() { y.Close() })
		},
		"abort": func(x, _ *session.Session) { x.Abort(wire.End{Code: wire.Invalid, Origin: wire.Local}) },
	} {
		t.Run(name, func(t *testing.T) {
			for range 5 {
				x, y := controlPair(t, session.Config{Handler: usual}, session.Config{Handler: usual})
				var all sync.WaitGroup
				for _, from := range []*session.Session{x, y} {
					all.Go(func() {
						for from.Call(context.Background(), "echo", strings.Repeat("x", 50_000), nil) == nil {
						}
					})
					all.Go(func() {
						for from.Send(context.Background(), "ignore", nil, numbered(t, 1)) == nil {
						}
					})
				}
				until(t, "the load is on", func() bool { return x.Inspect().CallsServed > 3 && y.Inspect().CallsServed > 3 })
				began := time.Now()
				act(x, y)
				all.Wait()
				x.Wait()
				y.Wait()
				if d := time.Since(began); d > patience {
					t.Errorf("took %v: somebody waited for the watchdog", d)
				}
			}
		})
	}
}

func TestAControlSessionWhosePeerIsSilentEndsInTime(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	x := session.NewControl(a, session.Config{Endpoint: "control"})
	var err error
	for err == nil { // nobody reads
		err = x.Send(within(t, 100*time.Millisecond), "m", strings.Repeat("x", 60_000), numbered(t, 1))
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want a deadline", err)
	}
	if err := x.Shutdown(within(t, 100*time.Millisecond), wire.End{Code: wire.Invalid, Origin: wire.Local}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want a deadline", err)
	}
	x.Wait()
	b.Close()
}

func TestABrokenControlPeerIsEndedWithTheReason(t *testing.T) {
	oneWay, err := wire.NewFrame(wire.KindOneWay, 0, request("echo"))
	if err != nil {
		t.Fatal(err)
	}
	claims := oneWay
	claims.Files = 2
	large, err := wire.NewFrame(wire.KindRequest, 1, wire.Request{Method: "echo", Length: 1})
	if err != nil {
		t.Fatal(err)
	}
	large.Flags = wire.FlagLarge
	for name, test := range map[string]struct {
		want  wire.Code
		sent  []byte
		files int
	}{
		"descriptors that did not come":     {wire.Malformed, claims.Append(nil), 1},
		"descriptors that were not claimed": {wire.Malformed, oneWay.Append(nil), 1},
		"a large request":                   {wire.Unsupported, large.Append(nil), 0},
		"a large reply":                     {wire.Unsupported, header(wire.Header{Kind: wire.KindReply, Flags: wire.FlagLarge, ID: 1}), 0},
		"garbage with descriptors":          {wire.Unsupported, []byte("GET / HTTP/1.1\r\n\r\n"), 2},
		"yamux":                             {wire.Unsupported, frame(1, 1, 1, 0), 0},
		"an end with descriptors":           {wire.Invalid, endFrame(t).Append(nil), 1},
		"half a frame":                      {wire.Invalid, oneWay.Append(nil)[:14], 0},
		"nothing":                           {wire.Invalid, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			a, b := sockets(t)
			y := session.NewControl(b, session.Config{Endpoint: "control", Handler: usual})
			defer closes(t, y)
			defer a.Close()
			var files []*os.File
			for range test.files {
				files = append(files, numbered(t, 1))
			}
			sendRaw(t, a, test.sent, files)
			go io.Copy(io.Discard, a)
			a.CloseWrite()
			wait(t, "the end", y.Done())
			if end := y.End(); end.Code != test.want {
				t.Errorf("end %+v, want %v", end, test.want)
			}
		})
	}
}

// endFrame returns an end that claims a descriptor.
func endFrame(t *testing.T) wire.Frame {
	f, err := wire.NewFrame(wire.KindEnd, 0, wire.End{Code: wire.Invalid, Origin: wire.Peer})
	if err != nil {
		t.Fatal(err)
	}
	f.Files = 1
	return f
}

// sendRaw writes b with files attached, which it closes.
func sendRaw(t *testing.T, conn *net.UnixConn, b []byte, files []*os.File) {
	t.Helper()
	defer socket.CloseFiles(files)
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if len(b) == 0 {
		return
	}
	if _, _, err := conn.WriteMsgUnix(b, oob, nil); err != nil {
		t.Fatal(err)
	}
}
