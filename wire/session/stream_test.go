package session_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

func open(t testing.TB, from *session.Session, method string) *session.Stream {
	t.Helper()
	st, err := from.OpenStream(within(t, 5*time.Second), method)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

func TestStreamsCarryBytesBothWaysAndEndOnlyByTheirEnd(t *testing.T) {
	c, s := pair(t, session.Config{}, session.Config{Handler: handler{streams: streams{
		"echo": echoStream,
		"drop": func(_ context.Context, st *session.Stream) error { st.Write([]byte("half")); return nil },
		"fail": func(_ context.Context, st *session.Stream) error {
			st.Write([]byte("half"))
			return wire.Errorf(wire.Conflict, "oh")
		},
		"panic": func(context.Context, *session.Stream) error { panic("oh") },
		"finish and fail": func(_ context.Context, st *session.Stream) error {
			st.Write([]byte("whole"))
			st.CloseWrite()
			return wire.Errorf(wire.Conflict, "oh")
		},
	}}})
	st := open(t, c, "echo")
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	go func() { st.Write(data); st.CloseWrite() }()
	got, err := io.ReadAll(st)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("read %d bytes, %v", len(got), err)
	}
	for method, want := range map[string]struct {
		text string
		err  error
	}{
		"drop": {"half", wire.Interrupted}, "fail": {"half", wire.Conflict}, "panic": {"", wire.Internal}, "finish and fail": {"whole", nil},
		"nothing": {"", wire.UnknownMethod},
	} {
		got, err := io.ReadAll(open(t, c, method))
		if string(got) != want.text || !errors.Is(err, want.err) {
			t.Errorf("%s: %q, %v, want %q, %v", method, got, err, want.text, want.err)
		}
	}
	if _, err := open(t, s, "any").Read(make([]byte, 1)); !errors.Is(err, wire.UnknownMethod) {
		t.Errorf("stream to a side that serves none: %v, want %v", err, wire.UnknownMethod)
	}
	for _, method := range []string{"", strings.Repeat("x", wire.MaxMethod+1)} {
		if _, err := c.OpenStream(within(t, time.Second), method); !errors.Is(err, wire.Malformed) {
			t.Errorf("method of %d bytes: %v, want %v", len(method), err, wire.Malformed)
		}
	}
}

func TestStreamsRunBesideEachOther(t *testing.T) {
	c, s := both(t, usual)
	var all sync.WaitGroup
	for i := range 16 {
		from := []*session.Session{c, s}[i%2]
		r := rand.New(rand.NewPCG(1, uint64(i)))
		st := open(t, from, "echo")
		data := bytes.Repeat([]byte{byte(i)}, 1+r.IntN(1<<20))
		all.Go(func() {
			for rest := data; len(rest) > 0; {
				n := min(len(rest), 1+r.IntN(100_000))
				if _, err := st.Write(rest[:n]); err != nil {
					t.Error(err)
				}
				rest = rest[n:]
			}
			if err := st.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if got, err := io.ReadAll(st); err != nil || !bytes.Equal(got, data) {
				t.Errorf("stream %d: %d of %d bytes, %v", i, len(got), len(data), err)
			}
		})
	}
	all.Wait()
}

// Streams whose reader stands still must not hold up anything else, in either direction.
func TestASlowReaderDelaysOnlyItself(t *testing.T) {
	c, s := both(t, usual)
	const slow = 7 // of each side: eight fill a session
	for range slow {
		st := open(t, c, "flood")
		if _, err := st.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		open(t, s, "flood")
	}
	until(t, "the writers stand still", func() bool {
		before := s.Inspect().Sent
		time.Sleep(20 * time.Millisecond)
		return s.Inspect().Sent == before && before > slow*(256<<10)
	})
	for _, from := range []*session.Session{c, s} {
		for _, size := range []int{0, 60_000, 300_000} {
			text, reply := strings.Repeat("x", size), ""
			if err := from.Call(within(t, 5*time.Second), "echo", text, &reply); err != nil || reply != text {
				t.Errorf("call of %d bytes: %d bytes, %v", size, len(reply), err)
			}
		}
		st := open(t, from, "echo")
		st.SetWriteDeadline(time.Now().Add(5 * time.Second))
		st.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := st.Write(make([]byte, 100_000)); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(st, make([]byte, 100_000)); err != nil {
			t.Error(err)
		}
	}
}

func TestReadingGoesOnAfterAllIsWritten(t *testing.T) {
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{streams: streams{
		"count": func(_ context.Context, st *session.Stream) error {
			b, err := io.ReadAll(st)
			for range b {
				st.Write([]byte("."))
			}
			return errors.Join(err, st.CloseWrite())
		},
	}}})
	st := open(t, c, "count")
	if _, err := st.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(st.CloseWrite(), st.CloseWrite()); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Write([]byte("more")); !errors.Is(err, wire.Invalid) {
		t.Errorf("writing after that: %v, want %v", err, wire.Invalid)
	}
	if got, err := io.ReadAll(st); err != nil || len(got) != 1000 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := st.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the end is not the end: %v", err)
	}
}

func TestAStreamIsUsableAfterAReadThatWasOverItsTime(t *testing.T) {
	c, _ := pair(t, session.Config{}, session.Config{Handler: usual})
	st := open(t, c, "echo")
	for range 3 {
		st.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v, want a deadline", err)
		}
		st.SetReadDeadline(time.Time{})
		if _, err := st.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 5)
		if _, err := io.ReadFull(st, b); err != nil || string(b) != "hello" {
			t.Fatalf("%q, %v", b, err)
		}
	}
}

func TestClosingAStreamEndsWhoReadsAndWritesIt(t *testing.T) {
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{streams: streams{
		"mute": func(ctx context.Context, _ *session.Stream) error { <-ctx.Done(); return nil },
	}}})
	st := open(t, c, "mute")
	results := make(chan error, 2)
	go func() { _, err := st.Read(make([]byte, 1)); results <- err }()
	go func() { _, err := st.Write(make([]byte, 1<<20)); results <- err }() // more than the peer's window
	until(t, "the writer stands still", func() bool {
		before := c.Inspect().Sent
		time.Sleep(10 * time.Millisecond)
		return c.Inspect().Sent == before && before > 200_000
	})
	st.Close()
	for range 2 {
		select {
		case err := <-results:
			if !errors.Is(err, wire.Invalid) {
				t.Errorf("%v, want %v", err, wire.Invalid)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("somebody still waits")
		}
	}
}

func TestAStreamThatIsLetGoIsALossToThePeer(t *testing.T) {
	got := make(chan error, 1)
	c, _ := pair(t, session.Config{}, session.Config{Handler: handler{streams: streams{
		"read": func(_ context.Context, st *session.Stream) error { _, err := io.ReadAll(st); got <- err; return nil },
	}}})
	st := open(t, c, "read")
	st.Write([]byte("half"))
	st.Close()
	if err := <-got; !errors.Is(err, wire.Interrupted) {
		t.Errorf("%v, want %v", err, wire.Interrupted)
	}
}

func TestTheEndOfTheSessionEndsItsStreams(t *testing.T) {
	c, s := pair(t, session.Config{}, session.Config{Handler: usual})
	flooded, quiet := open(t, c, "flood"), open(t, c, "echo")
	flooded.Read(make([]byte, 1))
	failed := make(chan error, 1)
	go func() { _, err := quiet.Read(make([]byte, 1)); failed <- err }()
	s.Close()
	if err := <-failed; !errors.Is(err, wire.Interrupted) {
		t.Errorf("who reads: %v, want %v", err, wire.Interrupted)
	}
	if _, err := quiet.Write([]byte("x")); !errors.Is(err, wire.Interrupted) {
		t.Errorf("who writes: %v, want %v", err, wire.Interrupted)
	}
	if _, err := c.OpenStream(within(t, time.Second), "echo"); !errors.Is(err, wire.Interrupted) {
		t.Errorf("who opens: %v, want %v", err, wire.Interrupted)
	}
}

func TestMoreStreamsThanAreServedAreRefused(t *testing.T) {
	c, s := pair(t, session.Config{}, session.Config{Handler: usual})
	refused := 0
	for range 300 {
		st := open(t, c, "echo")
		st.SetReadDeadline(time.Now().Add(5 * time.Second))
		st.Write([]byte("x"))
		if _, err := st.Read(make([]byte, 1)); errors.Is(err, wire.OverQuota) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if refused != 300-256 {
		t.Errorf("%d streams refused of 300", refused)
	}
	until(t, "no more are there than are served", func() bool { return s.Inspect().Streams == 256 })
	if err := c.Call(within(t, 5*time.Second), "echo", "", nil); err != nil {
		t.Error(err)
	}
}
