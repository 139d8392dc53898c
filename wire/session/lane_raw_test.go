package session_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// A rawPeer is a client on the socket itself: what it sends are bytes, and descriptors where a test says.
type rawPeer struct {
	t    testing.TB
	conn *net.UnixConn
	sent int64
}

// onLane returns a raw client, and the service's end of a session with a lane. What the client sends before begin is called is there when the
// session begins to read.
func onLane(t testing.TB, conf session.Config) (p *rawPeer, begin func() *session.Session) {
	t.Helper()
	leavesNothing(t)
	a, b := sockets(t)
	conf.Endpoint, conf.Lane = endpoint, true
	t.Cleanup(func() { a.Close() })
	return &rawPeer{t: t, conn: a}, func() *session.Session {
		t.Helper()
		s, err := session.New(b, conf)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close(); closes(t, s) })
		return s
	}
}

// send sends b in one sendmsg with files attached, which it closes. It reports false if the session takes no more.
func (p *rawPeer) send(b []byte, files ...*os.File) bool {
	p.t.Helper()
	defer socket.CloseFiles(files)
	var oob []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		oob = rights(fds...)
	}
	p.conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
	n, _, err := p.conn.WriteMsgUnix(b, oob, nil)
	p.sent += int64(n)
	if err == nil && n < len(b) {
		_, err = p.conn.Write(b[n:])
		p.sent += int64(len(b) - n)
	}
	return err == nil
}

// comes waits until s has read all that was sent.
func (p *rawPeer) comes(s *session.Session) {
	p.t.Helper()
	until(p.t, "all that was sent has come", func() bool { return s.Inspect().Received == p.sent || s.Context().Err() != nil })
}

// heard is what a session has sent to a raw peer.
type heard struct {
	frames  []wire.Frame
	files   map[uint32][]*os.File // of replies, by their id
	streams map[uint32][]byte     // what came on streams of yamux
	updates int                   // frames of yamux without data
	longest int                   // data of a frame of yamux
}

// hear reads whole frames until enough, or the end of file.
func (p *rawPeer) hear(h *heard, enough func(*heard) bool) {
	p.t.Helper()
	if h.streams == nil {
		h.streams, h.files = map[uint32][]byte{}, map[uint32][]*os.File{}
	}
	p.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	for !enough(h) {
		head := make([]byte, 12)
		files, err := p.full(head)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			p.t.Fatalf("read a frame: %v", err)
		}
		id, length := binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[8:])
		if head[0] == 0 && head[1] != 0 {
			h.updates++
			continue
		}
		body := make([]byte, length)
		more, err := p.full(body)
		if err != nil {
			p.t.Fatalf("read the body of a frame: %v", err)
		}
		if len(more) > 0 {
			p.t.Errorf("%d descriptors with a body", len(more))
		}
		if head[0] == 0 {
			h.streams[id] = append(h.streams[id], body...)
			h.longest = max(h.longest, len(body))
			continue
		}
		parsed, err := wire.ParseHeader(head)
		if err != nil || int(parsed.Files) != len(files) {
			p.t.Errorf("a %v with %d descriptors, %v", parsed, len(files), err)
		}
		h.frames = append(h.frames, wire.Frame{Header: parsed, Body: body})
		if len(files) > 0 {
			h.files[id] = files
		}
	}
}

// full fills b.
func (p *rawPeer) full(b []byte) (files []*os.File, err error) {
	receiver, err := socket.NewReceiver(p.conn)
	for at := 0; at < len(b) && err == nil; {
		var n int
		var got []*os.File
		n, got, _, err = receiver.Receive(b[at:])
		at, files = at+n, append(files, got...)
		if at == len(b) {
			err = nil
		}
	}
	return files, err
}

// reply returns the reply of id.
func (h *heard) reply(id uint32) (wire.Frame, bool) {
	for _, f := range h.frames {
		if f.Kind == wire.KindReply && f.ID == id {
			return f, true
		}
	}
	return wire.Frame{}, false
}

// data returns what the data frames on a stream hold, and whether it was finished.
func (h *heard) data(stream uint32) (data []byte, finished bool) {
	b := h.streams[stream]
	for len(b) >= wire.HeaderSize {
		head, err := wire.ParseHeader(b)
		if err != nil || int(head.Length) > len(b)-wire.HeaderSize {
			break
		}
		data = append(data, b[wire.HeaderSize:wire.HeaderSize+head.Length]...)
		b, finished = b[wire.HeaderSize+head.Length:], head.Kind == wire.KindFinish
	}
	return data, finished && len(b) == 0
}

// built returns the bytes of a frame of the lane that says n descriptors.
func built(t testing.TB, kind wire.Kind, flags uint8, id uint32, n int, body any) []byte {
	t.Helper()
	f, err := wire.NewFrame(kind, id, body)
	if err != nil {
		t.Fatal(err)
	}
	f.Flags, f.Files = flags, uint8(n)
	return f.Append(nil)
}

// asks returns a request's or one-way message's body.
func asks(t testing.TB, method string, value any) wire.Request {
	t.Helper()
	b, _, err := wire.MarshalFiles(value)
	if err != nil {
		t.Fatal(err)
	}
	return wire.Request{Method: method, Value: b}
}

// onStream returns frames of yamux with data for a stream, of at most n bytes each.
func onStream(id uint32, n int, data []byte) (list [][]byte) {
	for len(data) > 0 {
		n := min(n, len(data))
		list = append(list, frame(0, 0, id, uint32(n), data[:n]...))
		data = data[n:]
	}
	return list
}

// dataFrame returns a frame of a raw stream.
func dataFrame(b []byte) []byte {
	return append(header(wire.Header{Kind: wire.KindData, Length: uint32(len(b))}), b...)
}

// numberedFiles returns files that hold the numbers from 0.
func numberedFiles(t testing.TB, n int) (list []*os.File) {
	for i := range n {
		list = append(list, numbered(t, int64(i)))
	}
	return list
}

var finishFrame = bytes.Clone(header(wire.Header{Kind: wire.KindFinish}))

func rights(fds ...int) []byte { return unix.UnixRights(fds...) }
