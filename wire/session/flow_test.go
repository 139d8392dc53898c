package session_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// begins returns the first frame of a stream to a method.
func begins(t testing.TB, method string) []byte {
	t.Helper()
	f, err := wire.NewFrame(wire.KindStream, 0, wire.Stream{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	return f.Append(nil)
}

// full returns the first frame of a stream and data, as much as a window takes.
func full(t testing.TB, method string) []byte {
	b := begins(t, method)
	for room := 256<<10 - len(b); room > wire.HeaderSize; room = 256<<10 - len(b) {
		n := min(room-wire.HeaderSize, 32<<10)
		b = append(b, wire.Frame{Header: wire.Header{Kind: wire.KindData, Length: uint32(n)}, Body: make([]byte, n)}.Append(nil)...)
	}
	return b
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestStreamsThatWereRefusedCostNoMemory(t *testing.T) {
	h, s := withHostile(t)
	b := full(t, "nothing")
	before := inUse()
	const n = 200 // that are never closed
	for range n {
		if h.stream(b) == nil {
			t.Fatalf("the session has ended: %+v", s.End())
		}
	}
	until(t, "all is read and dropped", func() bool {
		unread, followed := s.Unread()
		return unread == 0 && followed == n
	})
	if after := inUse(); after > before+n*(64<<10) {
		t.Errorf("%d bytes, and before %d", after, before)
	}
	if end := s.End(); end != (wire.End{}) {
		t.Errorf("the session has ended: %+v", end)
	}
}

// guard: budget.await.
func TestAPeerThatSendsMoreThanIsReadIsEnded(t *testing.T) {
	for name, first := range map[string][]byte{
		"streams": full(t, "block"),
		"large bodies": append(header(wire.Header{Kind: wire.KindLarge, Flags: wire.FlagReply, Length: wire.MaxLarge}),
			make([]byte, 256<<10-wire.HeaderSize)...),
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			a, b := sockets(t)
			s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: handler{streams: streams{
				"block": func(ctx context.Context, _ *session.Stream) error { <-ctx.Done(); return nil },
			}}})
			if err != nil {
				t.Fatal(err)
			}
			s.SetPatience(100 * time.Millisecond)
			defer closes(t, s)
			defer a.Close()
			go io.Copy(io.Discard, a)
			a.SetWriteDeadline(time.Now().Add(20 * time.Second))
			a.Write(frame(1, 1, 1, 0))
			for i := range uint32(70) { // each is read a little
				b := bytes.Clone(first)
				if b[1] == byte(wire.KindLarge) {
					b[7] = byte(i + 1) // its id
				}
				if _, err := a.Write(append(frame(0, 1, 2*i+3, uint32(len(b))), b...)); err != nil {
					break
				}
			}
			wait(t, "the end", s.Done())
			if end := s.End(); end.Code != wire.OverQuota {
				t.Errorf("end %+v, want %v", end, wire.OverQuota)
			}
		})
	}
}

func TestAStreamsIdIsNotUsedForAnother(t *testing.T) {
	const window, syn = 1, 1
	for name, id := range map[string]uint32{"of this side": 2, "zero": 0, "in use": 1} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			a, b := sockets(t)
			s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: usual})
			if err != nil {
				t.Fatal(err)
			}
			defer closes(t, s)
			defer a.Close()
			go io.Copy(io.Discard, a)
			a.Write(append(frame(window, syn, 1, 0), frame(window, syn, id, 0)...))
			wait(t, "the end", s.Done())
			if end := s.End(); end.Code != wire.Malformed {
				t.Errorf("end %+v, want %v", end, wire.Malformed)
			}
		})
	}
}

func TestStreamsThatWereClosedAreForgotten(t *testing.T) {
	c, s := both(t, usual)
	for range 300 {
		for _, from := range []*session.Session{c, s} {
			st := open(t, from, "echo")
			st.Write(make([]byte, 1000))
			st.Close()
		}
	}
	for _, side := range []*session.Session{c, s} {
		until(t, "no stream is left", func() bool {
			unread, followed := side.Unread()
			_, there := side.Leftovers()
			return unread == 0 && followed == 0 && there == 0
		})
	}
}

func TestALargeBodyThatBelongsToNothingIsDropped(t *testing.T) {
	h, s := withHostile(t)
	s.SetBodyWait(10 * time.Millisecond)
	y := h.stream(append(header(wire.Header{Kind: wire.KindLarge, ID: 99, Length: wire.MaxLarge}), 1, 2, 3))
	h.write(nil)
	until(t, "it waits", func() bool { n, _ := s.Leftovers(); return n == 1 })
	until(t, "it is dropped", func() bool { n, _ := s.Leftovers(); return n == 0 })
	y.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if _, err := y.Write(make([]byte, wire.MaxLarge-3)); err != nil {
		t.Errorf("its sender is held up: %v", err)
	}
	until(t, "what still comes is dropped", func() bool { unread, _ := s.Unread(); return unread == 0 })
}

// A large body may come before its message, and its message may wait long before it is served.
func TestALargeBodyWaitsForItsMessage(t *testing.T) {
	hold := make(chan struct{})
	c, s := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"echo": echo,
		"hold": func(context.Context, *session.Message) (any, error) { <-hold; return nil, nil },
	}}})
	s.SetBodyWait(5 * time.Millisecond)
	if err := c.Send(within(t, time.Second), "hold", nil); err != nil {
		t.Fatal(err)
	}
	text, reply := string(make([]byte, 100_000)), ""
	time.AfterFunc(100*time.Millisecond, func() { close(hold) })
	if err := c.Call(within(t, 10*time.Second), "echo", text, &reply); err != nil || reply != text {
		t.Errorf("%d bytes, %v", len(reply), err)
	}
}

func TestAHandlerIsToldThatThePeerHasLetGoOfItsStream(t *testing.T) {
	const n = 256
	var all sync.WaitGroup
	all.Add(n)
	c, s := pair(t, session.Config{}, session.Config{Handler: handler{streams: streams{
		"wait": func(ctx context.Context, st *session.Stream) error {
			defer all.Done()
			st.Write([]byte("x"))
			<-ctx.Done()
			if s := st.Session(); s.Context().Err() == nil && !errors.Is(context.Cause(ctx), wire.Interrupted) {
				t.Errorf("cause %v", context.Cause(ctx))
			}
			return ctx.Err()
		},
	}}})
	for range n {
		st := open(t, c, "wait")
		if _, err := io.ReadFull(st, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		st.Close()
	}
	until(t, "no handler is left", func() bool { return s.Inspect().Streams == 0 })
	all.Wait()
}

func TestWhatWasWrittenCanBeReadAfterThePeerHasLetGo(t *testing.T) {
	gone, got := make(chan struct{}), make(chan []byte, 1)
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{streams: streams{
		"late": func(ctx context.Context, st *session.Stream) error {
			<-ctx.Done()
			close(gone)
			b, _ := io.ReadAll(st)
			got <- b
			return nil
		},
	}}})
	st := open(t, c, "late")
	st.Write(make([]byte, 100_000))
	st.CloseWrite()
	st.Close()
	wait(t, "the handler is told", gone)
	if b := <-got; len(b) != 100_000 {
		t.Errorf("%d bytes", len(b))
	}
}

func TestAnUploadThatIsRefusedFailsInsteadOfWaiting(t *testing.T) {
	read := make(chan struct{})
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{streams: streams{
		"no": func(context.Context, *session.Stream) error { <-read; return wire.Errorf(wire.Conflict, "no") },
	}}})
	st := open(t, c, "no")
	failed := make(chan error, 1)
	go func() { // more than a window, until it fails
		for b := make([]byte, 32<<10); ; {
			if _, err := st.Write(b); err != nil {
				failed <- err
				return
			}
		}
	}()
	until(t, "the writer stands still", func() bool {
		before := c.Inspect().Sent
		time.Sleep(10 * time.Millisecond)
		return c.Inspect().Sent == before && before > 200_000
	})
	close(read)
	select {
	case err := <-failed:
		if !errors.Is(err, wire.Interrupted) {
			t.Errorf("%v, want %v", err, wire.Interrupted)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the upload hangs")
	}
	st.SetWriteDeadline(time.Now().Add(time.Hour)) // changes nothing
	if _, err := st.Write([]byte("x")); !errors.Is(err, wire.Interrupted) {
		t.Errorf("a second write: %v, want %v", err, wire.Interrupted)
	}
	if err := st.CloseWrite(); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(st); !errors.Is(err, wire.Conflict) {
		t.Errorf("why: %v, want %v", err, wire.Conflict)
	}
}

// stalled returns a client whose peer takes nothing any more, and a stream of it.
func stalled(t *testing.T) (*session.Session, *session.Stream) {
	t.Helper()
	leavesNothing(t)
	a, b := sockets(t)
	c, err := session.New(a, session.Config{Endpoint: endpoint, Opener: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close(); closes(t, c) })
	st, filler := open(t, c, "any"), []*session.Stream{open(t, c, "any"), open(t, c, "any"), open(t, c, "any"), open(t, c, "any")}
	var all sync.WaitGroup
	for _, f := range filler { // the socket, and then the queue above it
		all.Go(func() { f.Write(make([]byte, 250<<10)) })
	}
	t.Cleanup(all.Wait)
	t.Cleanup(func() {
		for _, f := range filler {
			f.Close()
		}
	})
	until(t, "nothing leaves any more", func() bool {
		before := c.Inspect().Sent
		time.Sleep(20 * time.Millisecond)
		return c.Inspect().Sent == before && before > 100_000
	})
	return c, st
}

func TestAWriteThatWaitsForTheSocketIsEndedByTheStream(t *testing.T) {
	for name, test := range map[string]struct {
		act  func(st *session.Stream)
		want error
	}{
		"closed":     {func(st *session.Stream) { st.Close() }, wire.Invalid},
		"a deadline": {func(st *session.Stream) { st.SetWriteDeadline(time.Now().Add(time.Millisecond)) }, wire.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			_, st := stalled(t)
			failed, begun := make(chan error, 1), make(chan struct{})
			go func() {
				close(begun)
				_, err := st.Write(make([]byte, 1000))
				failed <- err
			}()
			<-begun
			select {
			case err := <-failed:
				t.Fatalf("the write does not wait: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
			test.act(st)
			select {
			case err := <-failed:
				if !errors.Is(err, test.want) {
					t.Errorf("%v, want %v", err, test.want)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the write still waits")
			}
		})
	}
}

// A peer that acknowledges nothing holds up whoever opens, but costs no goroutine for each.
func TestStreamsThatAreNotOpenedInTimeCostNoGoroutines(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	c, err := session.New(a, session.Config{Endpoint: endpoint, Opener: true})
	if err != nil {
		t.Fatal(err)
	}
	defer closes(t, c)
	defer b.Close()
	go io.Copy(io.Discard, b)
	for range 255 { // the message channel is one as well
		open(t, c, "any")
	}
	before := runtime.NumGoroutine()
	for range 200 {
		if _, err := c.OpenStream(within(t, time.Millisecond), "any"); !errors.Is(err, wire.DeadlineExceeded) {
			t.Fatalf("%v, want %v", err, wire.DeadlineExceeded)
		}
	}
	if after := runtime.NumGoroutine(); after > before+10 {
		t.Errorf("%d goroutines, and before %d", after, before)
	}
}

func TestAPeersOwnDeadlineIsReadAsOftenAsOneAsks(t *testing.T) {
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{streams: streams{
		"late": func(context.Context, *session.Stream) error {
			return wire.Errorf(wire.DeadlineExceeded, "the store is late")
		},
	}}})
	st := open(t, c, "late")
	for range 3 {
		_, err := st.Read(make([]byte, 1))
		if e, ok := errors.AsType[*wire.Error](err); !ok || e.Code != wire.DeadlineExceeded || e.Origin != wire.Peer {
			t.Errorf("%v, want %v of the peer", err, wire.DeadlineExceeded)
		}
	}
}

func TestWhatFailsOnALostStreamIsOfTheClosedSet(t *testing.T) {
	const window, syn, rst = 1, 1, 8
	leavesNothing(t)
	a, b := sockets(t)
	got := make(chan error, 2)
	s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: handler{streams: streams{
		"reset": func(ctx context.Context, st *session.Stream) error {
			<-ctx.Done()
			_, err := io.ReadAll(st)
			got <- err
			_, err = st.Write([]byte("x"))
			got <- err
			return nil
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer closes(t, s)
	defer a.Close()
	go io.Copy(io.Discard, a)
	first := begins(t, "reset")
	a.Write(append(frame(window, syn, 1, 0), frame(0, syn, 3, uint32(len(first)), first...)...))
	until(t, "the handler runs", func() bool { return s.Inspect().Streams == 1 })
	a.Write(frame(window, rst, 3, 0))
	for _, what := range []string{"read", "write"} {
		if err := <-got; wire.CodeOf(err) != wire.Interrupted {
			t.Errorf("%s: %v, want %v", what, err, wire.Interrupted)
		} else if _, ok := err.(*wire.Error); !ok {
			t.Errorf("%s: a %T", what, err)
		}
	}
}

// guard: streamsBound in accept. With the usual limits the memory of a session is full before, so this service takes more.
func TestMoreStreamsThanThereMayBeEndTheSession(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	limits := wire.DefaultLimits
	limits.Bytes = 64 << 20
	s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: usual, Receive: limits})
	if err != nil {
		t.Fatal(err)
	}
	defer closes(t, s)
	defer a.Close()
	go io.Copy(io.Discard, a)
	a.SetWriteDeadline(time.Now().Add(time.Minute))
	for id := range uint32(2000) {
		before := s.InMemory()
		if _, err := a.Write(frame(1, 1, 2*id+1, 0)); err != nil {
			break
		}
		until(t, "it is taken", func() bool { return s.InMemory() > before || s.Context().Err() != nil }) // yamux resets those that come faster than that
	}
	wait(t, "the end", s.Done())
	if end := s.End(); end.Code != wire.OverQuota || !strings.Contains(end.Text, "more than 1024 streams are open") {
		t.Errorf("end %+v, want %v and the streams named", end, wire.OverQuota)
	}
}

// guard: each of the three calls of flows.await in incoming: before data, before a stream begins, and before a message.
func TestNothingIsReadBeyondAFullMemory(t *testing.T) {
	const bound = 6656 << 10
	data := func(id uint32, n int) []byte { return frame(0, 0, id, uint32(n), make([]byte, n)...) }
	begin := func(id uint32) []byte {
		b := begins(t, "stall")
		return frame(0, 1, id, uint32(len(b)), b...)
	}
	for name, act := range map[string]func(s *session.Session, send func([]byte)){
		"data": func(_ *session.Session, send func([]byte)) {
			for i := range uint32(100) {
				send(begin(2*i + 1))
			}
			for i := range uint32(100) {
				send(data(2*i+1, 150<<10))
			}
		},
		"streams": func(_ *session.Session, send func([]byte)) {
			for i := range uint32(20_000) { // yamux resets those that come faster than they are accepted
				send(frame(1, 1, 2*i+1, 0))
			}
		},
		"messages": func(s *session.Session, send func([]byte)) {
			const streams = 100
			for i := range uint32(streams) {
				send(begin(2*i + 1))
			}
			until(t, "they are served", func() bool { return s.Inspect().Streams == streams })
			next := uint32(1)
			for _, fill := range []struct{ n, least int }{{200 << 10, 600 << 10}, {20 << 10, 60 << 10}, {2 << 10, 0}} { // little by little at last: what waits then are messages
				for s.InMemory() <= bound-fill.least {
					before := s.InMemory()
					send(data(next, fill.n))
					until(t, "it is taken", func() bool { return s.InMemory() >= before+fill.n })
					next += 2
				}
			}
			value := append(wire.Raw{0xc5, 0xf0, 0x00}, make([]byte, 0xf000)...)
			for i := range uint32(40) {
				send(built(t, wire.KindRequest, 0, i+1, 0, wire.Request{Method: "block", Value: value}))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			a, b := sockets(t)
			s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: usual, Lane: true})
			if err != nil {
				t.Fatal(err)
			}
			s.SetPatience(time.Second)
			defer closes(t, s)
			defer a.Close()
			go io.Copy(io.Discard, a)
			a.SetWriteDeadline(time.Now().Add(20 * time.Second))
			act(s, func(b []byte) { a.Write(b) }) // it fails when the session has ended, which is the point
			wait(t, "the end", s.Done())
			if end := s.End(); end.Code != wire.OverQuota || !strings.Contains(end.Text, "bytes in memory for one session") {
				t.Errorf("end %+v, want %v for its memory", end, wire.OverQuota)
			}
		})
	}
}

// yamux reads what comes into a bytes.Buffer that is made for the first, and lets the peer send more when half of the window was read.
func TestTheBufferOfAStreamIsNotLargerThanItCountsAs(t *testing.T) {
	const window = 384 << 10
	noise := rand.NewChaCha8([32]byte{})
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		var b *bytes.Buffer
		size, may := 0, window
		most, seldom, sip := 1+r.IntN(64<<10), 1+r.IntN(12), 1+r.IntN(window)
		for range 120 {
			if n := min(1+r.IntN(most), may); n > 0 {
				if b == nil {
					b = bytes.NewBuffer(make([]byte, 0, n))
				}
				may -= n
				size = max(size, session.Buffered(b.Len()+n))
				if _, err := io.Copy(b, io.LimitReader(noise, int64(n))); err != nil { // as yamux does
					t.Fatal(err)
				}
			}
			if r.IntN(seldom) == 0 && b.Len() > 1 {
				n := min(1+r.IntN(sip), b.Len()-1)
				b.Next(n)
				if room := window - b.Len(); room-may >= window/2 {
					may = room
				}
			}
			if real := b.Cap(); real > size+size/4 { // the Go runtime rounds up
				t.Fatalf("seed %d: it has %d bytes, counts as %d, and %d are unread", seed, real, size, b.Len())
			}
		}
	}
}
