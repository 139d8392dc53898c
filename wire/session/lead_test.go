package session_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// offSocket is how long a session whose reader is off the socket sees nothing of its peer at most. Time in the tests below is a bubble's.
const offSocket = 5 * time.Millisecond

// inMemory returns both ends of a connection on which nothing goes wrong.
func inMemory() (a, b *pipeEnd) {
	calm := func() *faults { return &faults{rnd: rand.New(rand.NewPCG(1, 1)), injected: new(atomic.Int64)} }
	return newPipe(64<<10, calm(), calm())
}

// An alone is a client that is the only caller of a service, both in one bubble.
type alone struct {
	c, s  *session.Session
	conn  *pipeEnd      // the service's
	told  chan struct{} // takes what comes at the client
	serve chan struct{} // has a call of "held" return
}

func beginAlone(t *testing.T) *alone {
	t.Helper()
	x := &alone{told: make(chan struct{}, 10), serve: make(chan struct{})}
	tell := func(context.Context, *session.Message) (any, error) {
		x.told <- struct{}{}
		return nil, nil
	}
	held := func(ctx context.Context, _ *session.Message) (any, error) {
		select {
		case <-x.serve:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	large := func(context.Context, *session.Message) (any, error) { return string(make([]byte, 1<<20)), nil }
	a, b := inMemory()
	x.conn = b
	var err error
	x.c, err = session.New(a, session.Config{Endpoint: endpoint, Opener: true, Lane: true, Handler: handler{methods: methods{"tell": tell}, streams: usual.streams}})
	if err != nil {
		t.Fatal(err)
	}
	x.s, err = session.New(b, session.Config{Endpoint: endpoint, Lane: true, Handler: handler{methods: methods{"echo": echo, "held": held, "large": large, "ignore": ignore}, streams: usual.streams}})
	if err != nil {
		t.Fatal(err)
	}
	x.c.OnEnd(func(wire.End) { x.told <- struct{}{} })
	ctx, cancel := context.WithTimeout(context.Background(), 2*offSocket)
	defer cancel()
	if err := x.c.Call(ctx, "held", nil, nil); wire.CodeOf(err) != wire.DeadlineExceeded { // from then on it does not hold up the service's reader
		t.Fatal(err)
	}
	return x
}

func (x *alone) end() {
	x.c.Close()
	x.s.Close()
	x.c.Wait()
	x.s.Wait()
}

// rest has the client's reader rest.
func rest(t *testing.T, c *session.Session, call func()) {
	t.Helper()
	for range 10_000 {
		if call(); c.Resting() {
			return
		}
	}
	t.Fatal("after 10,000 calls the reader does not rest")
}

func (x *alone) rest(t *testing.T) {
	t.Helper()
	rest(t, x.c, func() {
		var reply string
		if err := x.c.Call(context.Background(), "echo", "hi", &reply); err != nil || reply != "hi" {
			t.Fatalf("%q, %v", reply, err)
		}
	})
}

// lead has a caller lead, whose call is answered when serve is closed.
func (x *alone) lead(t *testing.T, ctx context.Context) (answer <-chan error) {
	t.Helper()
	x.rest(t)
	answered := make(chan error, 1)
	go func() { answered <- x.c.Call(ctx, "held", nil, nil) }()
	synctest.Wait()
	if !x.c.Led() {
		t.Fatal("the caller does not lead")
	}
	return answered
}

// A happening is what happens to a session, and how the client sees it: at once if it does so itself, else within offSocket.
type happening struct {
	do    func(x *alone) error
	after time.Duration
}

// inTime has it happen, and checks that the client sees it in time.
func (h happening) inTime(t *testing.T, x *alone) {
	t.Helper()
	began := time.Now()
	if err := h.do(x); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > h.after {
		t.Errorf("after %v, want %v at most", took, h.after)
	}
}

var happens = map[string]happening{
	"the peer ends the session":   {func(x *alone) error { go x.s.Close(); <-x.told; return nil }, offSocket},
	"the peer is gone":            {func(x *alone) error { x.conn.cut(); <-x.told; return nil }, offSocket},
	"a one-way message comes":     {func(x *alone) error { defer func() { <-x.told }(); return x.s.Send(context.Background(), "tell", nil) }, offSocket},
	"a request comes":             {func(x *alone) error { return x.s.Call(context.Background(), "tell", nil, nil) }, offSocket},
	"a stream comes":              {func(x *alone) error { return echoesHere(x.s) }, offSocket},
	"a stream is opened here":     {func(x *alone) error { return echoesHere(x.c) }, 0},
	"a large call is made":        {func(x *alone) error { return x.c.Call(context.Background(), "echo", string(make([]byte, 1<<20)), nil) }, 0},
	"a large reply comes":         {func(x *alone) error { return x.c.Call(context.Background(), "large", nil, nil) }, 0},
	"two calls are made at once":  {func(x *alone) error { return errors.Join(callsTwice(x.c)...) }, 0},
	"what was sent is flushed":    {func(x *alone) error { return x.c.Flush(context.Background()) }, 0},
	"the session is ended here":   {func(x *alone) error { return x.c.Close() }, 0},
	"the peer is to be drained":   {func(x *alone) error { return x.s.Drain(context.Background(), "drained") }, offSocket},
	"the session is drained here": {func(x *alone) error { return x.c.Drain(context.Background(), "drained") }, 0},
}

func echoesHere(s *session.Session) error {
	stream, err := s.OpenStream(context.Background(), "echo")
	if err != nil {
		return err
	}
	defer stream.Close()
	if _, err := stream.Write([]byte("hi")); err != nil {
		return err
	}
	_, err = io.ReadFull(stream, make([]byte, 2))
	return err
}

func callsTwice(s *session.Session) []error {
	other := make(chan error, 1)
	go func() { other <- s.Call(context.Background(), "ignore", nil, nil) }()
	return []error{s.Call(context.Background(), "ignore", nil, nil), <-other}
}

func TestASessionWhoseReaderRestsSeesAllWithinFiveMilliseconds(t *testing.T) {
	for name, happen := range happens {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				x := beginAlone(t)
				defer x.end()
				x.rest(t)
				happen.inTime(t, x)
			})
		})
	}
}

func TestASessionThatACallerReadsSeesAllWithinFiveMilliseconds(t *testing.T) {
	for name, happen := range happens {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				x := beginAlone(t)
				defer x.end()
				answer := x.lead(t, context.Background())
				time.AfterFunc(offSocket, func() { close(x.serve) }) // a drained session waits for it
				happen.inTime(t, x)
				err := <-answer
				if code := wire.CodeOf(err); err != nil && x.c.End().Code == "" {
					t.Errorf("the call: %v (%s)", err, code)
				}
			})
		})
	}
}

func TestAnIdleSessionReadsItsSocket(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := beginAlone(t)
		defer x.end()
		x.rest(t)
		time.Sleep(offSocket)
		synctest.Wait()
		if x.c.Resting() || x.c.Led() {
			t.Error("its reader is off the socket")
		}
		for range 100 {
			time.Sleep(2 * time.Millisecond) // calls that are not one after another need no rest
			if err := x.c.Call(context.Background(), "ignore", nil, nil); err != nil || x.c.Resting() {
				t.Fatalf("resting: %v, %v", x.c.Resting(), err)
			}
		}
	})
}

// A scripted is a service on the connection itself, for a client that leads.
type scripted struct {
	t    *testing.T
	conn *pipeEnd
	c    *session.Session
}

func (p scripted) next() wire.Frame {
	p.t.Helper()
	f, err := wire.ReadFrame(func(n int) ([]byte, error) {
		b := make([]byte, n)
		_, err := io.ReadFull(p.conn, b)
		return b, err
	})
	if err != nil {
		p.t.Error(err)
	}
	return f
}

func (p scripted) reply(id uint32) []byte { return built(p.t, wire.KindReply, 0, id, 0, "hi") }

func (p scripted) message() []byte {
	return built(p.t, wire.KindOneWay, 0, 0, 0, asks(p.t, "note", nil))
}

// handled sends b with a one-way message in it, which is to be handled at once.
func (p scripted) handled(b []byte) {
	p.t.Helper()
	began := time.Now()
	p.conn.Write(b)
	if f, took := p.next(), time.Since(began); f.Kind != wire.KindNotice || took > 0 {
		p.t.Errorf("a %v came after %v", f.Kind, took)
	}
}

func beginScripted(t *testing.T) scripted {
	t.Helper()
	a, b := inMemory()
	c, err := session.New(a, session.Config{Endpoint: endpoint, Opener: true, Lane: true, Handler: usual})
	if err != nil {
		t.Fatal(err)
	}
	return scripted{t, b, c}
}

func (p scripted) end() {
	p.conn.Close()
	p.c.Abort(wire.End{Code: wire.Invalid})
	p.c.Wait()
}

// call makes a call of the client.
func (p scripted) call(ctx context.Context) error {
	var reply string
	err := p.c.Call(ctx, "echo", nil, &reply)
	if err == nil && reply != "hi" {
		p.t.Errorf("the reply is %q", reply)
	}
	return err
}

// rest has the client's reader rest.
func (p scripted) rest() {
	p.t.Helper()
	rest(p.t, p.c, func() {
		done := make(chan error, 1)
		go func() { done <- p.call(context.Background()) }()
		p.conn.Write(p.reply(p.next().ID))
		if err := <-done; err != nil {
			p.t.Fatal(err)
		}
	})
}

// whileLed has the client lead a call, and returns its request, and how it ends.
func whileLed(t *testing.T) (p scripted, request wire.Frame, answer <-chan error) {
	t.Helper()
	p = beginScripted(t)
	p.rest()
	answered := make(chan error, 1)
	go func() { answered <- p.call(context.Background()) }()
	request = p.next()
	synctest.Wait()
	if !p.c.Led() {
		t.Fatal("the caller does not lead")
	}
	return p, request, answered
}

func TestACallerThatReadsIsAnsweredWhateverComesWithItsReply(t *testing.T) {
	for name, test := range map[string]struct {
		come func(p scripted, id uint32) // what the peer sends
		code wire.Code                   // of the call
		end  wire.Code                   // of the session
	}{
		"the reply alone": {func(p scripted, id uint32) { p.conn.Write(p.reply(id)) }, "", ""},
		"the reply, cut anywhere": {func(p scripted, id uint32) {
			for _, b := range p.reply(id) {
				p.conn.Write([]byte{b})
				time.Sleep(time.Millisecond)
			}
		}, "", ""},
		"a long reply": {func(p scripted, id uint32) {
			f := built(p.t, wire.KindReply, 0, id, 0, [2]string{"hi", string(make([]byte, 60_000))})
			p.conn.Write(f)
		}, wire.Malformed, ""}, // for it is no text, and comes whole
		"the reply, whose body comes late": {func(p scripted, id uint32) {
			p.conn.Write(p.reply(id)[:wire.HeaderSize])
			time.Sleep(2 * offSocket)
			p.conn.Write(p.reply(id)[wire.HeaderSize:])
		}, "", ""},
		"a message before it": {func(p scripted, id uint32) { p.handled(append(p.message(), p.reply(id)...)) }, "", ""},
		"a message behind it": {func(p scripted, id uint32) { p.handled(append(p.reply(id), p.message()...)) }, "", ""},
		"a reply to nothing":  {func(p scripted, id uint32) { p.conn.Write(p.reply(id + 1)) }, wire.Malformed, wire.Malformed},
		"what is no frame":    {func(p scripted, _ uint32) { p.conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")) }, wire.Unsupported, wire.Unsupported},
		"the end":             {func(p scripted, _ uint32) { p.conn.Close() }, wire.Interrupted, wire.Interrupted},
		"half of it and the end": {func(p scripted, id uint32) {
			p.conn.Write(p.reply(id)[:14])
			p.conn.Close()
		}, wire.Interrupted, wire.Interrupted},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, request, answer := whileLed(t)
				defer p.end()
				test.come(p, request.ID)
				if err := <-answer; wire.CodeOf(err) != test.code {
					t.Errorf("the call: %v, want %q", err, test.code)
				}
				synctest.Wait()
				if end := p.c.End(); end.Code != test.end {
					t.Errorf("the session's end: %+v, want %q", end, test.end)
				}
			})
		})
	}
}

func TestACallerThatReadsIsBackInTime(t *testing.T) {
	canceledAfter := func(d time.Duration) func() (context.Context, context.CancelFunc) {
		return func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(d, cancel)
			return ctx, cancel
		}
	}
	deadlineAfter := func(d time.Duration) func() (context.Context, context.CancelFunc) {
		return func() (context.Context, context.CancelFunc) { return context.WithTimeout(context.Background(), d) }
	}
	for _, test := range []struct {
		name        string
		bound       func() (context.Context, context.CancelFunc)
		least, most time.Duration
		code        wire.Code
	}{
		{"with a deadline that is near", deadlineAfter(3 * time.Millisecond), 3 * time.Millisecond, 3 * time.Millisecond, wire.DeadlineExceeded},
		{"with one just beyond", deadlineAfter(2 * offSocket), 2 * offSocket, 2 * offSocket, wire.DeadlineExceeded},
		{"with one that is far", deadlineAfter(time.Second), time.Second, time.Second, wire.DeadlineExceeded},
		{"that is canceled", canceledAfter(time.Millisecond), time.Millisecond, offSocket, wire.Canceled},
		{"that is canceled late", canceledAfter(time.Minute), time.Minute, time.Minute, wire.Canceled},
	} {
		for name, wait := range map[string]func(p scripted, ctx context.Context) error{
			"a call":  func(p scripted, ctx context.Context) error { return p.call(ctx) },
			"a flush": func(p scripted, ctx context.Context) error { return p.c.Flush(ctx) },
		} {
			t.Run(name+" "+test.name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p := beginScripted(t)
					defer p.end()
					for range 3 { // and nothing of it is left for the next one
						p.rest()
						ctx, cancel := test.bound()
						began := time.Now()
						err := wait(p, ctx)
						took := time.Since(began)
						cancel()
						if wire.CodeOf(err) != test.code || took < test.least || took > test.most {
							t.Errorf("after %v: %v, want %s after %v to %v", took, err, test.code, test.least, test.most)
						}
						request := p.next()
						if f := p.next(); f.Kind != wire.KindCancel {
							t.Errorf("a %v came", f.Kind)
						}
						p.conn.Write(p.reply(request.ID))
					}
				})
			})
		}
	}
}

func TestBesideACallerThatReadsAnotherIsAnsweredAtOnce(t *testing.T) {
	for _, first := range []int{0, 1} { // of the two, whose reply comes first; only the first of them reads
		bubble(t, func(t *testing.T) {
			p, request, answer := whileLed(t)
			defer p.end()
			other := make(chan error, 1)
			go func() { other <- p.call(context.Background()) }()
			requests, answers := []wire.Frame{request, p.next()}, []<-chan error{answer, other}
			for _, i := range []int{first, 1 - first} {
				began := time.Now()
				p.conn.Write(p.reply(requests[i].ID))
				if err, took := <-answers[i], time.Since(began); err != nil || took > 0 {
					t.Errorf("the call %d is answered after %v: %v", i, took, err)
				}
				synctest.Wait()
			}
		})
	}
}

func TestWhatIsToComeOnAStreamIsWaitedForAtTheSocket(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, request, answer := whileLed(t)
		defer p.end()
		p.conn.Write(built(t, wire.KindReply, wire.FlagLarge, request.ID, 0, nil))
		synctest.Wait()
		if p.c.Resting() || p.c.Led() {
			t.Error("the reader is off the socket")
		}
		p.conn.Close()
		if err := <-answer; wire.CodeOf(err) != wire.Interrupted {
			t.Errorf("the call: %v, want %s", err, wire.Interrupted)
		}
	})
}
