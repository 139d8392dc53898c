package session_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire/session"
)

// swallow reads all, and finishes.
func swallow(_ context.Context, st *session.Stream) error {
	_, err := io.Copy(io.Discard, st)
	return errors.Join(err, st.CloseWrite())
}

// each does a test with either side in both parts: who floods, and who has something else to do.
func each(t *testing.T, test func(t *testing.T, floods, other *session.Session)) {
	for _, name := range []string{"client against client", "client against service", "service against client", "service against service"} {
		t.Run(name, func(t *testing.T) {
			c, s := both(t, handler{methods: usual.methods, streams: streams{"sink": sink, "swallow": swallow}})
			sides := map[string]*session.Session{"client": c, "service": s}
			floods, other, _ := strings.Cut(name, " against ")
			test(t, sides[floods], sides[other])
		})
	}
}

func TestCallsCompleteWhileStreamsAreFlooded(t *testing.T) {
	const floods = 4
	calls := 100
	if *long {
		calls = 5000
	}
	each(t, func(t *testing.T, from, other *session.Session) {
		var all sync.WaitGroup
		defer all.Wait()
		var written atomic.Int64
		for range floods {
			st := open(t, from, "sink")
			all.Go(func() {
				for b := make([]byte, 256<<10); ; written.Add(int64(len(b))) {
					if _, err := st.Write(b); err != nil {
						return
					}
				}
			})
			defer st.Close()
		}
		until(t, "the streams are flooded", func() bool { return written.Load() > 4<<20 })
		began, before, took := time.Now(), written.Load(), newLatencies()
		for range calls {
			began := time.Now()
			if err := callSoon(other, "echo", "hi"); err != nil {
				t.Fatal(err)
			}
			took.since(began)
		}
		until(t, "the flood goes on", func() bool { return written.Load() > before })
		d := time.Since(began)
		t.Logf("%s: %v, %.0f calls/s, beside %.0f MB/s; %s", channel(), took, float64(calls)/d.Seconds(), float64(written.Load()-before)/1e6/d.Seconds(), machineLoad())
	})
}

func TestAStreamGoesOnWhileCallsAreFlooded(t *testing.T) {
	const callers = 64
	size := 4 << 20
	if *long {
		size = 1 << 28
	}
	each(t, func(t *testing.T, from, other *session.Session) {
		var all sync.WaitGroup
		defer all.Wait()
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		var made atomic.Int64
		for range callers {
			all.Go(func() {
				for text := strings.Repeat("x", 1000); ; made.Add(1) {
					if err := from.Call(ctx, "echo", text, nil); ctx.Err() != nil {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		until(t, "calls are flooded", func() bool { return made.Load() > callers })
		began, before := time.Now(), made.Load()
		st := open(t, other, "swallow")
		st.SetReadDeadline(time.Now().Add(2 * time.Minute))
		st.SetWriteDeadline(time.Now().Add(2 * time.Minute))
		err := write(st, size)
		if n, readErr := st.Read(make([]byte, 1)); err != nil || n > 0 || readErr != io.EOF {
			t.Errorf("the stream: %v, %v", err, readErr)
		}
		until(t, "the flood goes on", func() bool { return made.Load() > before })
		d := time.Since(began)
		t.Logf("%s: %.0f MB/s beside %.0f calls/s; %s", channel(), float64(size)/1e6/d.Seconds(), float64(made.Load()-before)/d.Seconds(), machineLoad())
	})
}

// write writes so many bytes, in parts of 64 KiB, and finishes.
func write(st *session.Stream, size int) error {
	b := make([]byte, 64<<10)
	for ; size > 0; size -= len(b) {
		if _, err := st.Write(b); err != nil {
			return err
		}
	}
	return st.CloseWrite()
}
