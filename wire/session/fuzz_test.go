package session_test

import (
	"io"
	"math"
	"net"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// FuzzSession gives a service-side session a peer that sends anything: straight to yamux, as the message channel, as a stream beside it, or on a
// control session. The session ends when the peer goes, and leaves nothing.
func FuzzSession(f *testing.F) {
	add := func(frames ...wire.Frame) {
		var b []byte
		for _, frame := range frames {
			b = frame.Append(b)
		}
		for how := range uint8(4) {
			f.Add(how, b)
		}
	}
	build := func(kind wire.Kind, id uint32, flags uint8, v any) wire.Frame {
		frame, err := wire.NewFrame(kind, id, v)
		if err != nil {
			f.Fatal(err)
		}
		frame.Flags = flags
		return frame
	}
	stopped := wire.End{Code: wire.Invalid, Origin: wire.Peer}
	add(build(wire.KindRequest, 1, 0, request("echo")), build(wire.KindCancel, 1, 0, nil), build(wire.KindEnd, 0, 0, stopped))
	add(build(wire.KindRequest, 1, wire.FlagLarge, wire.Request{Method: "echo", Length: 3}), build(wire.KindCancel, 1, wire.FlagLarge, nil))
	add(build(wire.KindOneWay, 0, 0, request("panic")), build(wire.KindNotice, 0, 0, wire.Notice{Name: wire.NoticeFacts, Facts: map[string]string{"a": "b"}}))
	add(build(wire.KindReply, 1, 0, "x"), build(wire.KindReply, 1, wire.FlagError, wire.Error{Code: wire.Conflict}))
	add(build(wire.KindStream, 0, 0, wire.Stream{Method: "echo"}), build(wire.KindData, 0, 0, "x"), build(wire.KindFinish, 0, 0, nil))
	add(build(wire.KindStream, 0, 0, wire.Stream{Method: "repeat", Within: 1}), build(wire.KindItem, 0, 0, "x"), build(wire.KindFinish, 0, 0, nil))
	add(build(wire.KindLarge, 1, 0, "x"), build(wire.KindLarge, 1, wire.FlagReply, "x"))
	f.Add(uint8(0), append(frame(1, 1, 1, 0), frame(0, 0, 1, 3, 1, 2, 3)...))
	f.Add(uint8(0), append(frame(1, 5, 1, 0), frame(2, 1, 0, 7)...))
	f.Add(uint8(0), append(frame(0, 3, 1, 1, 9), frame(3, 0, 0, 0)...))
	f.Fuzz(func(t *testing.T, how uint8, b []byte) {
		if len(b) > 100_000 {
			return
		}
		leavesNothing(t)
		peer, conn := sockets(t)
		var s *session.Session
		begin := frame(1, 1, 1, 0)
		switch how % 4 {
		case 0: // yamux's frames
		case 1: // the message channel's
			b = append(append(begin, frame(0, 0, 1, uint32(len(b)))...), b...)
		case 2: // a stream's
			b = append(append(append(begin, frame(1, 1, 3, 0)...), frame(0, 0, 3, uint32(len(b)))...), b...)
		case 3:
			s = session.NewControl(conn, session.Config{Endpoint: endpoint, Handler: usual})
		}
		if s == nil {
			var err error
			if s, err = session.New(conn, session.Config{Endpoint: endpoint, Handler: usual}); err != nil {
				t.Fatal(err)
			}
		}
		read := goDiscard(peer)
		peer.SetWriteDeadline(time.Now().Add(10 * time.Second))
		peer.Write(b)
		peer.CloseWrite()
		wait(t, "the end", s.Done())
		peer.Close()
		<-read
		closes(t, s)
		if end := s.End(); end.Code == "" || len(end.Text) > math.MaxUint16 {
			t.Errorf("end %+v", end)
		}
	})
}

func goDiscard(conn net.Conn) (done chan struct{}) {
	done = make(chan struct{})
	go func() { io.Copy(io.Discard, conn); close(done) }()
	return done
}
