package session_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// The service's socket takes little and its peer reads nothing until the session has ended, so that most of the reply's value waits in the conn by then.
func TestTheEndLeavesBehindTheLastReplysValue(t *testing.T) {
	const size = 100 << 10
	leavesNothing(t)
	peer, conn := sockets(t)
	if err := conn.SetWriteBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	asked, answer := make(chan struct{}), make(chan struct{})
	value := make([]byte, size)
	rand.NewChaCha8([32]byte{2}).Read(value)
	s, err := session.New(conn, session.Config{Endpoint: endpoint, Lane: true, Handler: handler{methods: methods{
		"last": func(context.Context, *session.Message) (any, error) {
			close(asked)
			<-answer
			return value, nil
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	p := rawPeer{t: t, conn: peer}
	p.send(built(t, wire.KindRequest, 0, 1, 0, asks(t, "last", nil)))
	wait(t, "the request", asked)
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(context.Background(), "it is stopped") }()
	var h heard
	kind := func(k wire.Kind) func(*heard) bool {
		return func(h *heard) bool {
			return slices.ContainsFunc(h.frames, func(f wire.Frame) bool { return f.Kind == k })
		}
	}
	p.hear(&h, kind(wire.KindFlush))
	p.send(header(wire.Header{Kind: wire.KindReply, ID: h.frames[len(h.frames)-1].ID}))
	close(answer)
	wait(t, "the end", s.Done())
	p.hear(&h, kind(wire.KindEnd))
	if r, replied := h.reply(1); !replied || r.Flags != wire.FlagLarge {
		t.Errorf("%v has come before the end, %t, want a large reply", r, replied)
	}
	if b := h.streams[2]; len(b) < size || !bytes.HasSuffix(b, value) {
		t.Errorf("%d bytes of the reply's stream came before the end, want all of %d, and a header", len(b), size)
	}
	peer.Close()
	if err := <-drained; err != nil {
		t.Error(err)
	}
	s.Wait()
}

func TestAReplysValueIsReadThatBeginsBehindTheEnd(t *testing.T) {
	value := make([]byte, 100<<10)
	rand.NewChaCha8([32]byte{3}).Read(value)
	encoded := asks(t, "", value).Value
	p, begin := onLane(t, session.Config{Opener: true})
	s := begin()
	var reply []byte
	called := make(chan error, 1)
	go func() { called <- s.Call(within(t, 20*time.Second), "last", nil, &reply) }()
	p.hear(&heard{}, func(h *heard) bool { return len(h.frames) > 0 })
	large := append(header(wire.Header{Kind: wire.KindLarge, Flags: wire.FlagReply, ID: 1, Length: uint32(len(encoded))}), encoded...)
	p.send(slices.Concat(
		header(wire.Header{Kind: wire.KindReply, Flags: wire.FlagLarge, ID: 1}),
		built(t, wire.KindEnd, 0, 0, 0, wire.End{Code: wire.Terminating, Origin: wire.Peer, Text: "it is stopped"}),
		frame(1, 1, 2, 0), bytes.Join(onStream(2, 32<<10, large), nil),
	))
	p.conn.CloseWrite()
	if err := <-called; err != nil || !bytes.Equal(reply, value) {
		t.Errorf("%d bytes of %d, %v", len(reply), len(value), err)
	}
	if end := s.End(); end.Code != wire.Interrupted {
		t.Errorf("the session has ended with %v, want %v", end.Code, wire.Interrupted)
	}
}
