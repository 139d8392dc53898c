package session_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A hostile is a client that keeps to yamux, and to nothing else.
type hostile struct {
	t    *testing.T
	conn *net.UnixConn
	mux  *yamux.Session
	link *yamux.Stream // its message channel
}

// withHostile returns the service's end of a session with a hostile client.
func withHostile(t *testing.T) (*hostile, *session.Session) {
	t.Helper()
	return withHostileServing(t, usual)
}

func withHostileServing(t *testing.T, serves handler) (*hostile, *session.Session) {
	t.Helper()
	leavesNothing(t)
	a, b := sockets(t)
	s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: serves})
	if err != nil {
		t.Fatal(err)
	}
	conf := plainYamux()
	conf.EnableKeepAlive = false
	mux, err := yamux.Client(a, conf)
	if err != nil {
		t.Fatal(err)
	}
	link, err := mux.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, link) // the peer must not be what is stuck
	t.Cleanup(func() {
		mux.Close()
		closes(t, s)
	})
	return &hostile{t, a, mux, link}, s
}

func (h *hostile) send(kind wire.Kind, flags uint8, id uint32, v any) {
	f, err := wire.NewFrame(kind, id, v)
	if err != nil {
		h.t.Error(err)
	}
	f.Flags = flags
	h.write(f.Append(nil))
}

func (h *hostile) write(b []byte) {
	h.link.SetWriteDeadline(time.Now().Add(5 * time.Second))
	h.link.Write(b) // fails when the session has ended, which is the point
}

// stream opens a further stream that begins with b.
func (h *hostile) stream(b []byte) *yamux.Stream {
	y, err := h.mux.OpenStream()
	if err != nil {
		return nil
	}
	y.Write(b)
	return y
}

func header(h wire.Header) []byte { return h.Append(nil) }

func request(method string) wire.Request { return wire.Request{Method: method, Value: wire.Raw{0xc0}} }

func TestAPeerThatBreaksTheProtocolIsEndedWithTheReason(t *testing.T) {
	block, echo := request("block"), request("echo")
	full := wire.Request{Method: "block", Value: append(wire.Raw{0xc5, 0xff, 0x00}, make([]byte, 0xff00)...)}
	for name, test := range map[string]struct {
		want wire.Code
		act  func(h *hostile, s *session.Session)
	}{
		"more requests than its credit": {wire.OverQuota, func(h *hostile, _ *session.Session) {
			for i := range uint32(wire.DefaultLimits.Calls + 1) {
				h.send(wire.KindRequest, 0, i+1, block)
			}
		}},
		"more bytes of requests than its credit": {wire.OverQuota, func(h *hostile, _ *session.Session) {
			for i := range uint32(wire.DefaultLimits.Bytes/0xff00 + 1) {
				h.send(wire.KindRequest, 0, i+1, full)
			}
		}},
		"more bytes of large requests than its credit": {wire.OverQuota, func(h *hostile, _ *session.Session) {
			h.send(wire.KindRequest, wire.FlagLarge, 1, wire.Request{Method: "block", Length: wire.MaxLarge})
			h.send(wire.KindRequest, wire.FlagLarge, 2, wire.Request{Method: "block", Length: 1})
		}},
		"more memory than a session has, by what each credit allows": {wire.OverQuota, func(h *hostile, s *session.Session) { // guard: budget.await
			s.SetPatience(100 * time.Millisecond)
			h.send(wire.KindRequest, wire.FlagLarge, 1, wire.Request{Method: "block", Length: wire.MaxLarge - 300})
			stalls, _ := wire.NewFrame(wire.KindStream, 0, wire.Stream{Method: "stall"})
			for range 16 {
				if y := h.stream(stalls.Append(nil)); y != nil {
					y.SetWriteDeadline(time.Now().Add(5 * time.Second))
					y.Write(wire.Frame{Header: wire.Header{Kind: wire.KindData, Length: wire.MaxBody}, Body: make([]byte, 200<<10)}.Append(nil))
				}
			}
		}},
		"more one-way messages than its credit": {wire.OverQuota, func(h *hostile, _ *session.Session) {
			for range wire.DefaultLimits.OneWay + 1 {
				h.send(wire.KindOneWay, 0, 0, block)
			}
		}},
		"more bytes of one-way messages than its credit": {wire.OverQuota, func(h *hostile, _ *session.Session) {
			for range wire.DefaultLimits.OneWayBytes/0xff00 + 1 {
				h.send(wire.KindOneWay, 0, 0, full)
			}
		}},
		"a request's id twice": {wire.Malformed, func(h *hostile, _ *session.Session) {
			h.send(wire.KindRequest, 0, 7, block)
			h.send(wire.KindRequest, 0, 7, block)
		}},
		"a request of id 0":   {wire.Malformed, func(h *hostile, _ *session.Session) { h.send(wire.KindRequest, 0, 0, echo) }},
		"a reply to nothing":  {wire.Malformed, func(h *hostile, _ *session.Session) { h.send(wire.KindReply, 0, 7, "x") }},
		"an error to nothing": {wire.Malformed, func(h *hostile, _ *session.Session) { h.send(wire.KindReply, wire.FlagError, 7, wire.Error{Code: "x"}) }},
		"a reply twice": {wire.Malformed, func(h *hostile, s *session.Session) {
			replied := make(chan struct{})
			go func() { s.Call(context.Background(), "m", nil, nil); close(replied) }()
			until(h.t, "a call is in flight", func() bool { return s.Inspect().CallsWaiting == 1 })
			h.send(wire.KindReply, 0, 1, "x")
			<-replied
			h.send(wire.KindReply, 0, 1, "x")
		}},
		"an error that is none":        {wire.Malformed, func(h *hostile, _ *session.Session) { h.send(wire.KindReply, wire.FlagError, 7, "x") }},
		"a request that is none":       {wire.Malformed, func(h *hostile, _ *session.Session) { h.send(wire.KindRequest, 0, 7, []int{1}) }},
		"a request without a body":     {wire.Malformed, func(h *hostile, _ *session.Session) { h.send(wire.KindRequest, 0, 7, nil) }},
		"a request without a method":   {wire.Malformed, func(h *hostile, _ *session.Session) { h.send(wire.KindRequest, 0, 7, wire.Request{}) }},
		"a large request of no length": {wire.Malformed, func(h *hostile, _ *session.Session) { h.send(wire.KindRequest, wire.FlagLarge, 7, echo) }},
		"a large one-way message": {wire.Unsupported, func(h *hostile, _ *session.Session) {
			h.send(wire.KindOneWay, wire.FlagLarge, 0, wire.Request{Method: "echo", Length: 1})
		}},
		"a bomb in a request": {wire.Malformed, func(h *hostile, _ *session.Session) {
			h.write(append(header(wire.Header{Kind: wire.KindRequest, ID: 1, Length: 5}), 0xdd, 0xff, 0xff, 0xff, 0xff))
		}},
		"a deep request": {wire.Malformed, func(h *hostile, _ *session.Session) {
			h.write(append(header(wire.Header{Kind: wire.KindRequest, ID: 1, Length: wire.MaxBody}), bytes.Repeat([]byte{0x91}, wire.MaxBody)...))
		}},
		"an end that is none": {wire.Malformed, func(h *hostile, _ *session.Session) { h.send(wire.KindEnd, 0, 0, wire.End{}) }},
		"credit that was not lent": {wire.Malformed, func(h *hostile, _ *session.Session) {
			h.send(wire.KindNotice, 0, 0, wire.Notice{Name: wire.NoticeHandled, Handled: 1})
		}},
		"bytes that were not lent": {wire.Malformed, func(h *hostile, _ *session.Session) {
			h.send(wire.KindNotice, 0, 0, wire.Notice{Name: wire.NoticeHandled, Bytes: 1 << 62})
		}},
		"credit that is negative": {wire.Malformed, func(h *hostile, _ *session.Session) {
			h.send(wire.KindNotice, 0, 0, wire.Notice{Name: wire.NoticeHandled, Handled: -1})
		}},
		"facts that are too long": {wire.OverQuota, func(h *hostile, _ *session.Session) {
			h.send(wire.KindNotice, 0, 0, wire.Notice{Name: wire.NoticeFacts, Facts: map[string]string{"a": strings.Repeat("x", 257)}})
		}},
		"a frame of before":         {wire.Malformed, func(h *hostile, _ *session.Session) { h.send(wire.KindOpen, 0, 0, wire.Open{}) }},
		"data on the channel":       {wire.Malformed, func(h *hostile, _ *session.Session) { h.send(wire.KindData, 0, 0, "x") }},
		"descriptors on the stream": {wire.Unsupported, func(h *hostile, _ *session.Session) { h.write(header(wire.Header{Kind: wire.KindCancel, Files: 1})) }},
		"another version":           {wire.Unsupported, func(h *hostile, _ *session.Session) { h.write([]byte{2, 16, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}) }},
		"yamux in yamux":            {wire.Unsupported, func(h *hostile, _ *session.Session) { h.write(make([]byte, 12)) }},
		"garbage":                   {wire.Unsupported, func(h *hostile, _ *session.Session) { h.write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")) }},
		"a megabyte of garbage":     {wire.Malformed, func(h *hostile, _ *session.Session) { h.write(bytes.Repeat([]byte{1}, 1<<20)) }},
		"a frame that is too long": {wire.Malformed, func(h *hostile, _ *session.Session) {
			h.write(header(wire.Header{Kind: wire.KindRequest, ID: 1, Length: wire.MaxBody + 1}))
		}},
		"an unknown kind":           {wire.Malformed, func(h *hostile, _ *session.Session) { h.write(header(wire.Header{Kind: 99})) }},
		"an unknown flag":           {wire.Malformed, func(h *hostile, _ *session.Session) { h.write(header(wire.Header{Kind: wire.KindCancel, Flags: 0x80})) }},
		"half a header and the end": {wire.Invalid, func(h *hostile, _ *session.Session) { h.write([]byte{1, 16, 0}); h.link.Close() }},
		"half a body and the end": {wire.Invalid, func(h *hostile, _ *session.Session) {
			h.write(append(header(wire.Header{Kind: wire.KindRequest, ID: 1, Length: 100}), 1, 2, 3))
			h.mux.Close()
		}},
		"the end without a word": {wire.Invalid, func(h *hostile, _ *session.Session) { h.mux.Close() }},
		"an end and more": {wire.Invalid, func(h *hostile, _ *session.Session) {
			h.send(wire.KindEnd, 0, 0, wire.End{Code: wire.Invalid, Origin: wire.Peer, Text: "closed"})
			h.send(wire.KindEnd, 0, 0, wire.End{Code: wire.Conflict, Origin: wire.Peer})
			h.write([]byte("and garbage after that"))
			h.link.Close()
		}},
		"more streams than there may be": {wire.OverQuota, func(h *hostile, s *session.Session) {
			for range 2000 {
				if h.stream(nil) == nil {
					return
				}
			}
		}},
		"streams that are never closed": {wire.OverQuota, func(h *hostile, s *session.Session) {
			f, _ := wire.NewFrame(wire.KindStream, 0, wire.Stream{Method: "nothing"})
			for range 2000 {
				if h.stream(f.Append(nil)) == nil {
					return
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h, s := withHostile(t)
			test.act(h, s)
			wait(t, "the end", s.Done())
			if end := s.End(); end.Code != test.want || len(end.Text) == 0 || len(end.Text) > wire.MaxText {
				t.Errorf("end %+v, want %v", end, test.want)
			}
		})
	}
}

func TestWhatAPeerDoesOnlyToItselfIsDropped(t *testing.T) {
	stream, err := wire.NewFrame(wire.KindStream, 0, wire.Stream{Method: "echo"})
	if err != nil {
		t.Fatal(err)
	}
	begun := stream.Append(nil)
	for name, act := range map[string]func(h *hostile){
		"a cancel of nothing":      func(h *hostile) { h.send(wire.KindCancel, 0, 99, nil) },
		"a withdrawal of nothing":  func(h *hostile) { h.send(wire.KindCancel, wire.FlagLarge, 99, nil) },
		"an unknown notice":        func(h *hostile) { h.send(wire.KindNotice, 0, 0, wire.Notice{Name: "weather"}) },
		"an unknown method":        func(h *hostile) { h.send(wire.KindOneWay, 0, 0, request("nothing")) },
		"a stream without a word":  func(h *hostile) { h.stream(nil) },
		"a stream of garbage":      func(h *hostile) { h.stream([]byte("GET / HTTP/1.1\r\n\r\n")) },
		"a stream of another kind": func(h *hostile) { h.stream(header(wire.Header{Kind: wire.KindRequest, ID: 1})) },
		"half a stream":            func(h *hostile) { h.stream(begun[:14]).Close() },
		"garbage on a stream":      func(h *hostile) { h.stream(append(bytes.Clone(begun), "garbage and more of it"...)) },
		"a request on a stream":    func(h *hostile) { h.stream(append(bytes.Clone(begun), header(wire.Header{Kind: wire.KindRequest})...)) },
		"an error on a stream": func(h *hostile) {
			h.stream(append(bytes.Clone(begun), header(wire.Header{Kind: wire.KindReply, Flags: wire.FlagError})...))
		},
		"half a frame on a stream": func(h *hostile) {
			h.stream(append(bytes.Clone(begun), header(wire.Header{Kind: wire.KindData, Length: 9})...)).Close()
		},
		"a large body of nothing": func(h *hostile) {
			h.stream(append(header(wire.Header{Kind: wire.KindLarge, ID: 99, Length: 3}), 1, 2, 3))
		},
		"half a large body": func(h *hostile) {
			h.stream(header(wire.Header{Kind: wire.KindLarge, ID: 99, Length: wire.MaxLarge})).Close()
		},
		"a large body twice": func(h *hostile) {
			for range 2 {
				h.stream(append(header(wire.Header{Kind: wire.KindLarge, ID: 99, Length: 1}), 0xc0))
			}
		},
		"many large bodies of nothing": func(h *hostile) {
			for i := range uint32(600) {
				h.stream(append(header(wire.Header{Kind: wire.KindLarge, ID: i + 100, Length: 1}), 0xc0))
			}
		},
		"a large request whose value never comes": func(h *hostile) {
			h.send(wire.KindRequest, wire.FlagLarge, 99, wire.Request{Method: "echo", Length: 1, Within: 10})
		},
		"a large request whose value is withdrawn": func(h *hostile) {
			h.send(wire.KindRequest, wire.FlagLarge, 99, wire.Request{Method: "echo", Length: 1})
			h.send(wire.KindCancel, wire.FlagLarge, 99, nil)
		},
		"a large request whose value is longer than announced": func(h *hostile) {
			h.send(wire.KindRequest, wire.FlagLarge, 99, wire.Request{Method: "echo", Length: 1})
			h.stream(append(header(wire.Header{Kind: wire.KindLarge, ID: 99, Length: 2}), 0xa1, 'x'))
		},
		"a large request whose value is cut off": func(h *hostile) {
			h.send(wire.KindRequest, wire.FlagLarge, 99, wire.Request{Method: "echo", Length: 3})
			h.stream(append(header(wire.Header{Kind: wire.KindLarge, ID: 99, Length: 3}), 0xa2)).Close()
		},
		"a few pings": func(h *hostile) {
			for range 10 {
				h.mux.Ping()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, s := withHostile(t)
			act(h)
			h.send(wire.KindRequest, 0, 1, request("echo"))
			until(t, "the session goes on", func() bool {
				in := s.Inspect()
				return in.CallsServed > 0 && in.CallsServing == 0
			})
			if end := s.End(); end != (wire.End{}) {
				t.Errorf("the session has ended: %+v", end)
			}
		})
	}
}

// A service that announces a large reply and never sends it.
func TestALargeReplyThatNeverComesHoldsNobodyForEver(t *testing.T) {
	for name, test := range map[string]struct {
		after func(t *testing.T, mux *yamux.Session, link *yamux.Stream)
		want  error
	}{
		"the call's time ends": {func(*testing.T, *yamux.Session, *yamux.Stream) {}, context.DeadlineExceeded},
		"the session is lost":  {func(_ *testing.T, mux *yamux.Session, _ *yamux.Stream) { mux.Close() }, wire.Interrupted},
		"the value is cut off": {func(t *testing.T, mux *yamux.Session, _ *yamux.Stream) {
			y, err := mux.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			y.Write(append(header(wire.Header{Kind: wire.KindLarge, Flags: wire.FlagReply, ID: 1, Length: wire.MaxLarge}), 1, 2, 3))
			y.Close()
		}, wire.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			a, b := sockets(t)
			c, err := session.New(a, session.Config{Endpoint: endpoint, Opener: true})
			if err != nil {
				t.Fatal(err)
			}
			defer closes(t, c)
			mux, err := yamux.Server(b, plainYamux())
			if err != nil {
				t.Fatal(err)
			}
			defer mux.Close()
			link, err := mux.AcceptStream()
			if err != nil {
				t.Fatal(err)
			}
			go io.Copy(io.Discard, link)
			got := make(chan error, 1)
			go func() { got <- c.Call(within(t, 2*time.Second), "m", nil, new(string)) }()
			until(t, "a call is in flight", func() bool { return c.Inspect().CallsWaiting == 1 })
			link.Write(header(wire.Header{Kind: wire.KindReply, Flags: wire.FlagLarge, ID: 1}))
			test.after(t, mux, link)
			if err := <-got; !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
		})
	}
}

// A peer that asks and never reads is ended, and costs no more than the bounds say.
func TestAPeerThatNeverReadsIsEnded(t *testing.T) {
	if !*long {
		t.Skip("takes long: it is run with -long")
	}
	leavesNothing(t)
	a, b := sockets(t)
	s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: usual})
	if err != nil {
		t.Fatal(err)
	}
	defer closes(t, s)
	defer a.Close()
	begin := frame(1, 1, 1, 0)
	a.SetWriteDeadline(time.Now().Add(3 * time.Minute)) // it takes half a minute with the race detector
	if _, err := a.Write(begin); err != nil {
		t.Fatal(err)
	}
	// Each stream that begins is acknowledged, and each that is refused is answered; nothing of that is read.
	for id := uint32(3); s.End() == (wire.End{}); id += 2 {
		if _, err := a.Write(append(frame(1, 1, id, 0), frame(1, 4, id, 0)...)); err != nil {
			break
		}
	}
	wait(t, "the end", s.Done())
	if end := s.End(); end.Code != wire.OverQuota {
		t.Errorf("end %+v, want %v", end, wire.OverQuota)
	}
}

func TestAPeersLinesAreLoggedBriefly(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	var lines countingHandler
	s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: usual, Logger: lines.logger()})
	if err != nil {
		t.Fatal(err)
	}
	defer closes(t, s)
	for range 3000 { // each makes yamux complain
		if _, err := fmt.Fprintf(a, "%s", frame(1, 0, 99, 0)); err != nil {
			t.Fatal(err)
		}
	}
	a.Close()
	wait(t, "the end", s.Done())
	if n := lines.n.Load(); n > 20 {
		t.Errorf("%d lines", n)
	}
}

// guard: the time of pushWhile.
func TestAPeerThatTakesNoRepliesIsEnded(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: usual, Lane: true})
	if err != nil {
		t.Fatal(err)
	}
	s.SetPatience(100 * time.Millisecond)
	defer closes(t, s)
	defer a.Close()
	value := append(wire.Raw{0xda, 0xf0, 0x00}, make([]byte, 0xf000)...)
	a.SetWriteDeadline(time.Now().Add(20 * time.Second))
	for i := range uint32(60) {
		if _, err := a.Write(built(t, wire.KindRequest, 0, i+1, 0, wire.Request{Method: "echo", Value: value})); err != nil {
			break
		}
	}
	wait(t, "the end", s.Done())
	if end := s.End(); end.Code != wire.OverQuota || !strings.Contains(end.Text, "taken no reply") {
		t.Errorf("end %+v, want %v for its replies", end, wire.OverQuota)
	}
}

// guard: the watchdogs of ending and of breach. Each such peer would keep a goroutine and a descriptor for as long as it likes.
func TestAPeerThatKeepsItsSocketAfterTheEndIsLetGo(t *testing.T) {
	if !lane {
		return // it is on one by itself
	}
	for name, last := range map[string][]byte{
		"its own end": built(t, wire.KindEnd, 0, 0, 0, wire.End{Code: wire.Invalid, Origin: wire.Peer, Text: "closed"}),
		"a breach":    header(wire.Header{Kind: wire.KindOpen}),
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			a, b := sockets(t)
			defer a.Close()
			s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: usual, Lane: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.Write(last); err != nil {
				t.Fatal(err)
			}
			gone := make(chan struct{})
			go func() { s.Wait(); close(gone) }()
			wait(t, "all of it", gone)
		})
	}
}

// guard: that ending believes only an instance that its broker speaks.
func TestAClientDoesNotSpeakForTheBroker(t *testing.T) {
	h, s := withHostile(t)
	h.send(wire.KindEnd, 0, 0, wire.End{Code: wire.Conflict, Origin: wire.Broker, Text: "by the broker"})
	wait(t, "the end", s.Done())
	if end := s.End(); end.Origin != wire.Peer {
		t.Errorf("end %+v, want it of the peer", end)
	}
}

// guard: the bound of bodies.slot.
func TestNoMoreLargeBodiesWaitThanThereMayBe(t *testing.T) {
	h, s := withHostile(t)
	const sent, most = 600, 512
	for i := range uint32(sent) {
		if h.stream(append(header(wire.Header{Kind: wire.KindLarge, ID: i + 1, Length: 1}), 0xc0)) == nil {
			t.Fatalf("the session has ended: %+v", s.End())
		}
	}
	until(t, "those beyond are dropped, and the others wait", func() bool {
		bodies, _ := s.Leftovers()
		unread, _ := s.Unread()
		return bodies >= most && unread == 0
	})
	if bodies, _ := s.Leftovers(); bodies > most {
		t.Errorf("%d bodies wait for their messages, want %d", bodies, most)
	}
}

// guard: yamuxConfig, without which yamux ends the session of a peer that is stopped, as under a debugger, after 10 or 75 s.
func TestYamuxJudgesNothingByTime(t *testing.T) {
	c := session.YamuxConfig()
	if c.EnableKeepAlive || c.StreamOpenTimeout != 0 || c.StreamCloseTimeout != 0 || c.ConnectionWriteTimeout < 365*24*time.Hour {
		t.Errorf("it is %+v", c)
	}
}
