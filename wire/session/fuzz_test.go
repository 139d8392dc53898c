package session_test

import (
	"bytes"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// howMany is how many ways into a session there are. On the lane, how over that is how many descriptors go with the first write.
const howMany = 5

// FuzzSession gives a service-side session a peer that sends anything: straight to yamux, as the message channel, as a stream beside it, on a
// control session, or on a lane with yamux's frames between. The session ends when the peer goes, and leaves nothing.
func FuzzSession(f *testing.F) {
	add := func(frames ...wire.Frame) {
		var b []byte
		for _, frame := range frames {
			b = frame.Append(b)
		}
		for how := range uint8(howMany) {
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
	addMixed(f)
	f.Fuzz(func(t *testing.T, how uint8, b []byte) {
		if len(b) > 100_000 {
			return
		}
		leavesNothing(t)
		peer, conn := sockets(t)
		var s *session.Session
		begin := frame(1, 1, 1, 0)
		files := 0
		switch how % howMany {
		case 0: // yamux's frames
		case 1: // the message channel's
			b = append(append(begin, frame(0, 0, 1, uint32(len(b)))...), b...)
		case 2: // a stream's
			b = append(append(append(begin, frame(1, 1, 3, 0)...), frame(0, 0, 3, uint32(len(b)))...), b...)
		case 3:
			s = session.NewControl(conn, session.Config{Endpoint: endpoint, Handler: usual})
		case 4:
			files = int(how / howMany)
		}
		if s == nil {
			var err error
			if s, err = session.New(conn, session.Config{Endpoint: endpoint, Handler: usual, Lane: how%howMany == 4}); err != nil {
				t.Fatal(err)
			}
		}
		read := goDiscard(peer)
		peer.SetWriteDeadline(time.Now().Add(10 * time.Second))
		writeWith(t, peer, b, files)
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

// addMixed adds what both kinds of frames are sent as on a lane, with descriptors that are theirs and that are not.
func addMixed(f *testing.F) {
	text := []byte("on a stream")
	stream := append(append(begins(f, "echo"), dataFrame(text)...), finishFrame...)
	two := built(f, wire.KindRequest, 0, 3, 2, asks(f, "swap", carried{Files: []*os.File{os.Stdin, os.Stdout}}))
	end := built(f, wire.KindEnd, 0, 0, 0, wire.End{Code: wire.Invalid, Origin: wire.Peer})
	for _, mixed := range [][][]byte{
		{two, frame(1, 1, 1, 0), frame(0, 0, 1, uint32(len(stream)), stream...), end},
		{frame(1, 1, 1, 0), two, frame(0, 0, 1, uint32(len(stream)), stream...), two},
		{built(f, wire.KindOneWay, 0, 0, 2, asks(f, "ignore", nil)), frame(2, 1, 0, 7), built(f, wire.KindFlush, 0, 5, 0, nil), frame(3, 0, 0, 0)},
		{two[:20], frame(1, 1, 1, 0)},
		wholeTalk(f),
	} {
		for _, files := range []uint8{0, 1, 2, wire.MaxFiles, wire.MaxFiles + 1} {
			f.Add(4+howMany*files, bytes.Join(mixed, nil))
		}
	}
}

// wholeTalk returns the frames of a conversation, mixed.
func wholeTalk(f *testing.F) (list [][]byte) {
	for _, p := range talk(f).mixed(rand.New(rand.NewPCG(6, 0))) {
		list = append(list, p.b)
	}
	return list
}

// writeWith writes b, and with its first bytes so many descriptors.
func writeWith(t *testing.T, peer *net.UnixConn, b []byte, files int) {
	if files == 0 || len(b) == 0 {
		peer.Write(b)
		return
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if n, _, err := peer.WriteMsgUnix(b, rights(slices.Repeat([]int{int(null.Fd())}, files)...), nil); err == nil {
		peer.Write(b[n:])
	}
}

func goDiscard(conn net.Conn) (done chan struct{}) {
	done = make(chan struct{})
	go func() { io.Copy(io.Discard, conn); close(done) }()
	return done
}
