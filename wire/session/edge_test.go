package session_test

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

func TestAKeyThatComesTwiceLeavesNoDescriptorOpen(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close what is lost
	type one struct {
		File *os.File `msgpack:"f"`
	}
	p, begin := onLane(t, session.Config{Handler: handler{methods: methods{"take": func(_ context.Context, m *session.Message) (any, error) {
		var v one
		err := m.Decode(&v)
		if err == nil {
			err = v.File.Close()
		}
		return nil, err
	}}}})
	begin()
	value := wire.Raw{0x83, 0xa1, 'f', 0, 0xa1, 'f', 1, 0xa1, 'f', 2}
	before := len(descriptors())
	for id := range uint32(20) {
		p.send(built(t, wire.KindRequest, 0, id+1, 3, asks(t, "take", value)), numbered(t, 1), numbered(t, 2), numbered(t, 3))
	}
	var h heard
	p.hear(&h, func(h *heard) bool { _, last := h.reply(20); return last })
	if f, _ := h.reply(1); f.Flags != 0 {
		t.Errorf("%q", f.Body)
	}
	until(t, "all are closed", func() bool { return len(descriptors()) <= before })
}

func TestDeadlinesHoldBehindAFrameThatStopsInItsMiddle(t *testing.T) {
	leavesNothing(t)
	peer, conn := sockets(t)
	c, err := session.New(conn, session.Config{Endpoint: endpoint, Opener: true, Lane: true})
	if err != nil {
		t.Fatal(err)
	}
	defer closes(t, c)
	defer peer.Close()
	go func() { // it answers that the value comes on a stream, and sends half of what it says
		socket.ReadFrame(peer)
		reply := wire.Header{Kind: wire.KindReply, Flags: wire.FlagLarge, ID: 1}.Append(nil)
		value := wire.Header{Kind: wire.KindLarge, Flags: wire.FlagReply, ID: 1, Length: 100_000}.Append(nil)
		peer.Write(append(reply, frame(0, 1, 2, 1000, append(value, make([]byte, 500)...)...)...))
	}()
	began := time.Now()
	if err := c.Call(within(t, 300*time.Millisecond), "any", nil, new(string)); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 4*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func TestManyLargeRepliesBesideEachOtherAllCome(t *testing.T) {
	text := strings.Repeat("x", 1<<20)
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"large": func(context.Context, *session.Message) (any, error) { return text, nil },
	}}})
	var all sync.WaitGroup
	var failed atomic.Int64
	for range 80 { // far more than a session holds at a time
		all.Go(func() {
			var got string
			if err := c.Call(within(t, 60*time.Second), "large", nil, &got); err != nil || len(got) != len(text) {
				failed.Add(1)
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	all.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of 80 failed", n)
	}
}

func TestAHandlerThatEndsItsGoroutineIsAnsweredForAndStopsNothing(t *testing.T) {
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"echo": echo, "exit": func(context.Context, *session.Message) (any, error) { runtime.Goexit(); return nil, nil },
	}}})
	if err := c.Call(within(t, 5*time.Second), "exit", nil, nil); !errors.Is(err, wire.Internal) {
		t.Errorf("call: %v, want %s", err, wire.Internal)
	}
	for range 300 { // more than the credit
		if err := c.Send(within(t, 5*time.Second), "exit", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Flush(within(t, 5*time.Second)); err != nil {
		t.Errorf("flush: %v", err)
	}
	if err := c.Call(within(t, 5*time.Second), "echo", "", nil); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestAnEmptyReadOfAStreamIsNoFailure(t *testing.T) {
	c, _ := both(t, usual)
	st, err := c.OpenStream(within(t, 5*time.Second), "echo")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	io.WriteString(st, "hi")
	for range 2 {
		if n, err := st.Read(nil); n != 0 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	st.CloseWrite()
	if b, err := io.ReadAll(st); err != nil || string(b) != "hi" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestEachSideHasItsOwnPlacesForStreams(t *testing.T) {
	c, s := both(t, usual)
	for range 256 {
		st, err := s.OpenStream(within(t, 10*time.Second), "echo")
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
	}
	st, err := c.OpenStream(within(t, 10*time.Second), "echo")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	io.WriteString(st, "hi")
	if _, err := io.ReadFull(st, make([]byte, 2)); err != nil {
		t.Errorf("the client's first stream: %v", err)
	}
}

func TestDescriptorsOfRepliesThatAreNotSentAreClosed(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	c, _ := lanes(t, session.Config{}, session.Config{Handler: handler{methods: methods{
		"too many": func(context.Context, *session.Message) (any, error) {
			return carried{Files: openFiles(t, wire.MaxFiles+1)}, nil
		},
		"failed": func(context.Context, *session.Message) (any, error) {
			return carried{Files: openFiles(t, 3)}, wire.Conflict
		},
	}}})
	before := len(descriptors())
	for range 20 {
		if err := c.Call(within(t, 5*time.Second), "too many", nil, nil); err == nil {
			t.Error("too many were sent")
		}
		if err := c.Call(within(t, 5*time.Second), "failed", nil, nil); !errors.Is(err, wire.Conflict) {
			t.Error(err)
		}
	}
	until(t, "all are closed", func() bool { return len(descriptors()) <= before })
}
