package session_test

import (
	"encoding/binary"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A stock client has yamux as it comes, msgpack as it comes, and docs/protocol.md. The numbers below are that document's; nothing here is the wire
// package's.
type stock struct {
	t       *testing.T
	mux     *yamux.Session
	channel *yamux.Stream
}

type object = map[string]any

// plainYamux is yamux as it comes, but for what it leaves behind.
func plainYamux() *yamux.Config {
	conf := yamux.DefaultConfig()
	conf.LogOutput = io.Discard
	conf.StreamCloseTimeout = 0 // it outlives the session by minutes, and then takes a timer of a bubble of synctest
	return conf
}

func withStock(t *testing.T, serves handler) (*stock, *session.Session) {
	t.Helper()
	leavesNothing(t)
	a, b := sockets(t)
	s, err := session.New(b, session.Config{Endpoint: endpoint, Handler: serves})
	if err != nil {
		t.Fatal(err)
	}
	mux, err := yamux.Client(a, plainYamux())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mux.Close(); closes(t, s) })
	p := &stock{t: t, mux: mux}
	p.channel = p.open()
	return p, s
}

// open opens a stream on which nothing may take long.
func (p *stock) open() *yamux.Stream {
	p.t.Helper()
	st, err := p.mux.OpenStream()
	if err != nil {
		p.t.Fatal(err)
	}
	st.SetDeadline(time.Now().Add(20 * time.Second))
	return st
}

func pack(t *testing.T, v any) []byte {
	t.Helper()
	b, err := msgpack.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// put writes a frame.
func (p *stock) put(to io.Writer, kind, flags byte, id uint32, body []byte) {
	p.t.Helper()
	b := []byte{1, kind, 0, flags}
	b = binary.BigEndian.AppendUint32(b, id)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	if _, err := to.Write(append(b, body...)); err != nil {
		p.t.Fatal(err)
	}
}

// get reads a frame.
func (p *stock) get(from io.Reader) (kind, flags byte, id uint32, body []byte) {
	p.t.Helper()
	head := make([]byte, 12)
	if _, err := io.ReadFull(from, head); err != nil {
		p.t.Fatal(err)
	}
	if head[0] != 1 || head[2] != 0 {
		p.t.Fatalf("a frame that begins with %v", head)
	}
	body = make([]byte, binary.BigEndian.Uint32(head[8:]))
	if _, err := io.ReadFull(from, body); err != nil {
		p.t.Fatal(err)
	}
	return head[1], head[3], binary.BigEndian.Uint32(head[4:]), body
}

// want reads a frame and checks all of it; a nil value is an empty body.
func (p *stock) want(from io.Reader, kind, flags byte, id uint32, value any) {
	p.t.Helper()
	gotKind, gotFlags, gotID, body := p.get(from)
	if gotKind == 20 && kind != 20 { // a notice may come at any time
		p.want(from, kind, flags, id, value)
		return
	}
	var got any
	if len(body) > 0 {
		if err := msgpack.Unmarshal(body, &got); err != nil {
			p.t.Fatal(err)
		}
	}
	if text, is := got.(object); is {
		delete(text, "t") // for people
		delete(text, "o") // which only its sender knows to read
	}
	if gotKind != kind || gotFlags != flags || gotID != id || !reflect.DeepEqual(got, value) {
		p.t.Fatalf("kind %d, flags %d, id %d, %v, want %d, %d, %d, %v", gotKind, gotFlags, gotID, got, kind, flags, id, value)
	}
}

func (p *stock) request(flags byte, id uint32, r object) {
	p.put(p.channel, 16, flags, id, pack(p.t, r))
}

func (p *stock) calls() {
	p.request(0, 1, object{"m": "echo", "v": "hi", "unknown": 1})
	p.want(p.channel, 17, 0, 1, "hi")
	p.request(0, 2, object{"m": "block"})
	p.put(p.channel, 18, 0, 2, nil)
	p.want(p.channel, 17, 1, 2, object{"c": "canceled"})
	p.request(0, 3, object{"m": "block", "w": 10})
	p.want(p.channel, 17, 1, 3, object{"c": "deadline_exceeded"})
	p.put(p.channel, 19, 0, 0, pack(p.t, object{"m": "ignore"}))
	p.put(p.channel, 22, 0, 4, nil)
	for kind := byte(20); kind == 20; { // the message's credit, before or after
		var id uint32
		if kind, _, id, _ = p.get(p.channel); kind != 20 && (kind != 17 || id != 4) {
			p.t.Fatalf("a flush is answered with kind %d of id %d", kind, id)
		}
	}
}

func (p *stock) rawStream() {
	st := p.open()
	p.put(st, 32, 0, 0, pack(p.t, object{"m": "echo"}))
	p.put(st, 33, 0, 0, []byte("not "))
	p.put(st, 33, 0, 0, []byte("msgpack"))
	p.put(st, 34, 0, 0, nil)
	var text strings.Builder
	for {
		kind, _, _, body := p.get(st)
		if kind == 34 {
			break
		}
		text.WriteString(string(body))
	}
	st.Close()
	if _, err := st.Read(make([]byte, 1)); text.String() != "not msgpack" || err != io.EOF {
		p.t.Errorf("%q, and then %v", text.String(), err)
	}
}

func (p *stock) streamingCall() {
	st := p.open()
	p.put(st, 32, 0, 0, pack(p.t, object{"m": "repeat", "v": "its own value"}))
	p.put(st, 36, 0, 0, pack(p.t, "one"))
	p.want(st, 36, 0, 0, "one")
	p.put(st, 36, 0, 0, pack(p.t, object{"n": "two"}))
	p.want(st, 36, 0, 0, object{"n": "two"})
	p.put(st, 34, 0, 0, nil)
	p.want(st, 34, 0, 0, nil)
	st.Close()
	st = p.open()
	p.put(st, 32, 0, 0, pack(p.t, object{"m": "nothing"}))
	p.want(st, 17, 1, 0, object{"c": "unknown_method"})
	st.Close()
}

// largeValues sends and gets a value that travels on a stream.
func (p *stock) largeValues() {
	text := strings.Repeat("x", 300_000)
	value := pack(p.t, text)
	p.request(2, 5, object{"m": "echo", "n": len(value)})
	st := p.open()
	p.put(st, 35, 0, 5, value)
	st.Close()
	back, err := p.mux.AcceptStream()
	if err != nil {
		p.t.Fatal(err)
	}
	back.SetDeadline(time.Now().Add(20 * time.Second))
	p.want(back, 35, 4, 5, text)
	back.Close()
	p.want(p.channel, 17, 2, 5, nil)
}

// answers takes a call of the other side.
func (p *stock) answers(s *session.Session) {
	result := make(chan error, 1)
	go func() {
		reply := 0
		err := s.Call(within(p.t, 20*time.Second), "double", 21, &reply)
		if err == nil && reply != 42 {
			err = wire.Errorf(wire.Internal, "%d", reply)
		}
		result <- err
	}()
	kind, flags, id, body := p.get(p.channel)
	var r object
	if err := msgpack.Unmarshal(body, &r); err != nil || kind != 16 || flags != 0 || r["m"] != "double" {
		p.t.Fatalf("kind %d, %v, %v", kind, r, err)
	}
	p.put(p.channel, 17, 0, id, pack(p.t, 42))
	if err := take(p.t, "the reply", result); err != nil {
		p.t.Errorf("a call of the other side: %v", err)
	}
}

func TestAClientThatKnowsYamuxMsgpackAndTheProtocolDocumentNeedsNothingElse(t *testing.T) {
	p, s := withStock(t, usual)
	p.calls()
	p.rawStream()
	p.streamingCall()
	p.largeValues()
	p.answers(s)
	p.put(p.channel, 21, 0, 0, pack(t, object{"c": "invalid", "o": "peer", "t": "enough"}))
	p.channel.Close()
	if rest, err := io.ReadAll(p.channel); len(rest) > 0 || err != nil {
		t.Errorf("after the end came %q, %v", rest, err)
	}
	wait(t, "the end", s.Done())
	if end, want := s.End(), (wire.End{Code: wire.Invalid, Origin: wire.Peer, Text: "enough"}); end != want {
		t.Errorf("end %+v, want %+v", end, want)
	}
	began := time.Now()
	p.mux.Close()
	s.Wait()
	if d := time.Since(began); d > patience {
		t.Errorf("took %v: somebody waited for the watchdog", d)
	}
}
