package session_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"testing"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

func TestALongWriteLeavesInWholeFramesOfAtMost32KiB(t *testing.T) {
	const most = 32 << 10
	data := make([]byte, 200<<10)
	rand.NewChaCha8([32]byte{1}).Read(data)
	long := func(_ context.Context, st *session.Stream) error {
		if _, err := st.Write(data); err != nil {
			return err
		}
		return st.CloseWrite()
	}
	p, begin := onLane(t, session.Config{Handler: handler{streams: streams{"long": long}}})
	begin()
	p.send(bytes.Join(append([][]byte{frame(1, 1, 1, 0)}, onStream(1, most, begins(t, "long"))...), nil))
	var h heard
	p.hear(&h, func(h *heard) bool { _, finished := h.data(1); return finished })
	if got, finished := h.data(1); !bytes.Equal(got, data) || !finished {
		t.Errorf("%d bytes came of %d, finished %t, or not the same", len(got), len(data), finished)
	}
	if h.longest > most {
		t.Errorf("a frame has %d bytes of data, want at most %d", h.longest, most)
	}
}

func TestAStreamThatRestsGivesItsBufferBack(t *testing.T) {
	const most = 160 << 10 // bytes, both sides together: yamux's sender keeps what it has written last
	received := make(chan struct{})
	c, _ := both(t, handler{streams: streams{"count": func(_ context.Context, st *session.Stream) error {
		if _, err := io.CopyN(io.Discard, st, 4<<20); err != nil {
			return err
		}
		close(received)
		_, err := st.Read(make([]byte, 1))
		return err
	}}})
	st := open(t, c, "count")
	before := heap()
	if _, err := st.Write(make([]byte, 4<<20)); err != nil {
		t.Fatal(err)
	}
	wait(t, "all of it", received)
	until(t, "the buffer is given back", func() bool { return heap()-before < most })
}

func TestAnIdleSessionTakesLittleMemory(t *testing.T) {
	if !lane {
		t.Skip("yamux has goroutines and buffers of its own")
	}
	leavesNothing(t)
	const sessions = 400
	var peers, ours []*net.UnixConn
	for range sessions {
		a, b := sockets(t)
		peers, ours = append(peers, a), append(ours, b)
	}
	before := footprint()
	request := built(t, wire.KindRequest, 0, 1, 0, asks(t, "note", note{"text", 1}))
	list := make([]*session.Session, sessions)
	for i, b := range ours {
		var err error
		if list[i], err = session.New(b, session.Config{ID: session.NewID(), Endpoint: endpoint, Handler: usual, Lane: true}); err != nil {
			t.Fatal(err)
		}
		peer := rawPeer{t: t, conn: peers[i]}
		peer.send(request)
		peer.hear(&heard{}, func(h *heard) bool { _, replied := h.reply(1); return replied })
	}
	var each int64
	until(t, "idle sessions let go of what they need for a call", func() bool {
		each = (footprint() - before) / sessions
		return each <= mostIdle
	})
	t.Logf("each of %d takes %d bytes", sessions, each)
	for i, s := range list {
		peers[i].Close()
		s.Wait()
	}
}

// footprint returns how many bytes of the heap and of stacks are in use when garbage was collected and stacks were cut.
func footprint() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
