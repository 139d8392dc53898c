package session_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// A conversation is what a raw client sends: the frames of the lane and of each stream in their order, and how many descriptors go with each.
type conversation struct {
	lane  []part
	yamux []part
}

type part struct {
	b     []byte
	files int
}

// talk returns a conversation with calls, one of them with descriptors, a one-way message, a flush, a large request, and a stream.
func talk(t testing.TB) conversation {
	t.Helper()
	large := asks(t, "echo", "large")
	large.Value, large.Length = nil, 6
	text := []byte(strings.Repeat("on a stream ", 3))
	stream := append(append(begins(t, "echo"), dataFrame(text)...), finishFrame...)
	var c conversation
	for _, b := range [][]byte{
		built(t, wire.KindRequest, 0, 1, 0, asks(t, "echo", "one")),
		built(t, wire.KindOneWay, 0, 0, 0, asks(t, "note", "two")),
		built(t, wire.KindRequest, 0, 3, 2, asks(t, "swap", carried{Files: []*os.File{os.Stdin, os.Stdout}})),
		built(t, wire.KindCancel, 0, 99, 0, nil),
		built(t, wire.KindRequest, wire.FlagLarge, 4, 0, large),
		built(t, wire.KindFlush, 0, 5, 0, nil),
	} {
		c.lane = append(c.lane, part{b, int(b[2])})
	}
	c.yamux = []part{{frame(1, 1, 1, 0), 0}, {frame(2, 1, 0, 7), 0}}
	for _, b := range onStream(1, 30, stream) {
		c.yamux = append(c.yamux, part{b, 0})
	}
	c.yamux = append(c.yamux, part{frame(1, 1, 3, 0), 0})
	for _, b := range onStream(3, 10, append(header(wire.Header{Kind: wire.KindLarge, ID: 4, Length: 6}), "\xa5large"...)) {
		c.yamux = append(c.yamux, part{b, 0})
	}
	return c
}

// mixed returns a conversation in one order: both kinds keep theirs.
func (c conversation) mixed(r *rand.Rand) (parts []part) {
	lane, mux := c.lane, c.yamux
	for len(lane)+len(mux) > 0 {
		if len(mux) == 0 || len(lane) > 0 && r.IntN(len(lane)+len(mux)) < len(lane) {
			parts, lane = append(parts, lane[0]), lane[1:]
		} else {
			parts, mux = append(parts, mux[0]), mux[1:]
		}
	}
	return parts
}

// A sendmsg is sent at once.
type sendmsg struct {
	b     []byte
	files int
}

// cut returns the parts as they are sent when a new sendmsg begins at each of the bytes at, and where descriptors need one.
func cut(parts []part, at ...int) (list []sendmsg) {
	begins, offset := map[int]bool{}, 0
	for _, a := range at {
		begins[a] = true
	}
	for _, p := range parts {
		for i, b := range p.b {
			if len(list) == 0 || begins[offset] || i == 0 && p.files > 0 {
				list = append(list, sendmsg{})
				if i == 0 {
					list[len(list)-1].files = p.files
				}
			}
			list[len(list)-1].b = append(list[len(list)-1].b, b)
			offset++
		}
	}
	return list
}

// understood checks that the session has taken a conversation as it was meant, and ends it.
func (p *rawPeer) understood(s *session.Session, noted *atomic.Int64) {
	p.t.Helper()
	var h heard
	p.hear(&h, func(h *heard) bool {
		_, one := h.reply(1)
		_, three := h.reply(3)
		_, four := h.reply(4)
		_, five := h.reply(5)
		_, finished := h.data(1)
		return one && three && four && five && finished
	})
	for id, want := range map[uint32]string{1: "\xa3one", 4: "\xa5large", 5: "\xc0"} {
		if f, _ := h.reply(id); string(f.Body) != want || f.Flags != 0 {
			p.t.Errorf("reply %d: %q with flags %d, want %q", id, f.Body, f.Flags, want)
		}
	}
	f, _ := h.reply(3)
	var got carried
	if left, err := wire.UnmarshalFiles(f.Body, h.files[3], &got); err != nil || len(left) > 0 || len(got.Files) != 2 {
		p.t.Errorf("%d descriptors, and %d more, %v", len(got.Files), len(left), err)
	}
	for i, f := range got.Files {
		if n := number(p.t, f); int(n) != len(got.Files)-1-i {
			p.t.Errorf("descriptor %d is number %d", i, n)
		}
	}
	if data, _ := h.data(1); string(data) != strings.Repeat("on a stream ", 3) {
		p.t.Errorf("the stream: %q", data)
	}
	if n := noted.Load(); n != 1 {
		p.t.Errorf("%d one-way messages were handled before the flush was answered, want 1", n)
	}
	p.send(built(p.t, wire.KindEnd, 0, 0, 0, wire.End{Code: wire.Invalid, Origin: wire.Peer, Text: "said all"}))
	p.conn.CloseWrite()
	p.hear(&h, func(*heard) bool { return false })
	wait(p.t, "the end", s.Done())
	if end := s.End(); end.Code != wire.Invalid || end.Text != "said all" {
		p.t.Errorf("end %+v", end)
	}
}

// converse has a session take a conversation that is sent as list says. With pause it has read each sendmsg before the next is sent; without, all
// is there before it begins.
func converse(t *testing.T, list []sendmsg, pause bool) {
	t.Helper()
	var noted atomic.Int64
	h := handler{streams: usual.streams, methods: methods{"echo": echo, "swap": swap, "note": func(context.Context, *session.Message) (any, error) {
		noted.Add(1)
		return nil, nil
	}}}
	p, begin := onLane(t, session.Config{Handler: h})
	var s *session.Session
	if pause {
		s = begin()
	}
	for _, m := range list {
		if !p.send(m.b, numberedFiles(t, m.files)...) {
			t.Fatal("the session takes no more")
		}
		if pause {
			p.comes(s)
		}
	}
	if !pause {
		s = begin()
	}
	p.understood(s, &noted)
}

func TestFramesOfBothKindsMixAndAreCutAtAnyByte(t *testing.T) {
	parts := talk(t).mixed(rand.New(rand.NewPCG(8, 1)))
	length := 0
	for _, p := range parts {
		length += len(p.b)
	}
	step := 3 // the two runs of this package take other ones
	if *long {
		step = 1
	}
	first := 1
	if lane {
		first = 2
	}
	for at := first; at < length; at += step {
		t.Run(fmt.Sprintf("at %d", at), func(t *testing.T) { converse(t, cut(parts, at), true) })
	}
	t.Run("not at all", func(t *testing.T) { converse(t, cut(parts), false) })
	every := make([]int, length)
	for i := range every {
		every[i] = i
	}
	t.Run("at every byte", func(t *testing.T) { converse(t, cut(parts, every...), true) })
}

func TestFramesOfBothKindsMixInAnyOrder(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(9, seed))
			parts := talk(t).mixed(r)
			var at []int
			for range r.IntN(6) {
				at = append(at, r.IntN(500))
			}
			converse(t, cut(parts, at...), seed%2 == 0)
		})
	}
}

// A read may begin with the end of earlier frames, and its descriptors are still those of the frame that they were sent with.
func TestDescriptorsAreOfTheFrameTheyWereSentWithWhereverAReadBegins(t *testing.T) {
	const buffer = 4 << 10 // what is read at once while there are no streams
	type frames = func(n int) []byte
	befores := map[string]frames{
		"a one-way message": func(n int) []byte {
			value := wire.Raw{0xc5, byte((n - 34) >> 8), byte(n - 34)}
			b := built(t, wire.KindOneWay, 0, 0, 0, wire.Request{Method: "ignore", Value: append(value, make([]byte, n-34)...)})
			return b[:len(b):len(b)]
		},
		"pings and data of a stream": func(n int) []byte {
			first := append(frame(1, 1, 1, 0), frame(0, 0, 1, uint32(len(begins(t, "sink"))), begins(t, "sink")...)...)
			data := dataFrame(make([]byte, n-len(first)-24))
			return append(first, frame(0, 0, 1, uint32(len(data)), data...)...)
		},
	}
	for name, before := range befores {
		for n := buffer - 40; n < buffer+40; n += 1 + len(name)%3 {
			for _, k := range []int{1, 11, 12, 13, 1 << 10} { // bytes that go with the descriptors
				t.Run(fmt.Sprintf("%s, %d, %d", name, n, k), func(t *testing.T) { matched(t, before(n), k) })
			}
		}
	}
}

// matched sends before, and behind it three messages with descriptors and three without, k bytes of each with its descriptors.
func matched(t *testing.T, before []byte, k int) {
	t.Helper()
	var taken atomic.Int64
	p, begin := onLane(t, session.Config{Handler: handler{streams: usual.streams, methods: methods{
		"ignore": ignore,
		"take": func(_ context.Context, m *session.Message) (any, error) {
			var got carried
			if err := m.Decode(&got); err != nil || len(got.Files) != int(got.N+1) {
				t.Errorf("message %d: %d descriptors, %v", got.N, len(got.Files), err)
			}
			for _, f := range got.Files {
				if n := number(t, f); n != got.N {
					t.Errorf("message %d came with descriptor %d", got.N, n)
				}
			}
			taken.Add(1)
			return nil, nil
		},
	}}})
	p.send(before)
	for i := range 3 {
		var list []*os.File
		for range i + 1 {
			list = append(list, numbered(t, int64(i)))
		}
		b := built(t, wire.KindOneWay, 0, 0, len(list), asks(t, "take", carried{N: int64(i), Files: list}))
		p.send(b[:min(k, len(b))], list...)
		p.send(append(b[min(k, len(b)):], built(t, wire.KindOneWay, 0, 0, 0, asks(t, "ignore", nil))...))
	}
	s := begin()
	p.send(built(t, wire.KindFlush, 0, 1, 0, nil))
	var h heard
	p.hear(&h, func(h *heard) bool { _, done := h.reply(1); return done })
	if n := taken.Load(); n != 3 {
		t.Errorf("%d of 3 messages were taken, end %+v", n, s.End())
	}
}

// What was sent whole before the end is read whole, also when all of it comes at once.
func TestALargeReplyThatComesAtOnceWithTheEndIsReadWhole(t *testing.T) {
	leavesNothing(t)
	text := strings.Repeat("x", 70_000)
	value, _, err := wire.MarshalFiles(text)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		a, b := sockets(t)
		c, err := session.New(a, session.Config{Endpoint: endpoint, Opener: true, Lane: true})
		if err != nil {
			t.Fatal(err)
		}
		var reply string
		replied := make(chan error, 1)
		began := time.Now()
		go func() { replied <- c.Call(within(t, 20*time.Second), "last", nil, &reply) }()
		if f, _, err := socket.ReadFrame(b); err != nil || f.Kind != wire.KindRequest {
			t.Fatal(f.Kind, err)
		}
		large := append(header(wire.Header{Kind: wire.KindLarge, Flags: wire.FlagReply, ID: 1, Length: uint32(len(value))}), value...)
		all := append(append(frame(1, 1, 2, 0), frame(0, 0, 2, uint32(len(large)), large...)...), frame(1, 4, 2, 0)...)
		all = append(all, header(wire.Header{Kind: wire.KindReply, Flags: wire.FlagLarge, ID: 1})...)
		all = append(all, built(t, wire.KindEnd, 0, 0, 0, wire.End{Code: wire.Terminating, Origin: wire.Peer})...)
		if _, err := b.Write(all); err != nil {
			t.Fatal(err)
		}
		b.CloseWrite()
		err = <-replied
		c.Wait()
		b.Close()
		if err != nil || reply != text {
			t.Fatalf("run %d, after %v: %d bytes, %v", i, time.Since(began), len(reply), err)
		}
	}
}

func TestALongCallLeavesNoMemoryBehind(t *testing.T) {
	const sessions, most = 32, 16 << 10 // bytes for each side
	if !lane {
		t.Skip("a stream keeps up to maxChunk")
	}
	list := make([]*session.Session, 0, 2*sessions)
	for range sessions {
		c, s := both(t, usual)
		list = append(list, c, s)
	}
	callAll := func(size int) {
		for _, s := range list {
			if err := s.Call(within(t, 20*time.Second), "echo", strings.Repeat("x", size), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	callAll(1)
	before := heap()
	callAll(60 << 10)
	if kept := (heap() - before) / int64(len(list)); kept > most {
		t.Errorf("each side keeps %d bytes after a long call, want at most %d", kept, most)
	}
}
