package session_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
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
						f := numbered(t, 1)
						defer f.Close()
						for from.Send(context.Background(), "ignore", carried{Files: []*os.File{f}}) == nil {
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
	f := numbered(t, 1)
	defer f.Close()
	var err error
	for err == nil { // nobody reads
		err = x.Send(within(t, 100*time.Millisecond), "m", carried{Text: strings.Repeat("x", 60_000), Files: []*os.File{f}})
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
