package session_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

func TestFactsOfBothSidesAreShownAndBounded(t *testing.T) {
	c, s := both(t, usual)
	if err := c.SetFact("container", "web"); err != nil {
		t.Fatal(err)
	}
	s.SetFact("lease", "10.0.0.2")
	c.Call(within(t, time.Second), "echo", "", nil) // what was sent before has come
	in := s.Inspect()
	if in.PeerFacts["container"] != "web" || in.Facts["lease"] != "10.0.0.2" {
		t.Errorf("facts %v and %v", in.Facts, in.PeerFacts)
	}
	if err := c.SetFact("long", strings.Repeat("x", wire.MaxFact+1)); !errors.Is(err, wire.OverQuota) {
		t.Errorf("oversized fact: %v, want %v", err, wire.OverQuota)
	}
	for i := range wire.MaxFacts - 1 {
		if err := c.SetFact(fmt.Sprint(i), strings.Repeat("x", wire.MaxFact)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.SetFact("one more", ""); !errors.Is(err, wire.OverQuota) {
		t.Errorf("fact %d: %v, want %v", wire.MaxFacts+1, err, wire.OverQuota)
	}
	if err := c.Call(within(t, time.Second), "echo", "", nil); err != nil || len(s.Inspect().PeerFacts) != wire.MaxFacts {
		t.Errorf("%d facts arrived, %v", len(s.Inspect().PeerFacts), err)
	}
}

func TestAnInspectionCountsWhatHappened(t *testing.T) {
	c, s := both(t, usual)
	for range 3 {
		if err := c.Call(within(t, time.Second), "echo", "", nil); err != nil {
			t.Fatal(err)
		}
	}
	st, err := c.OpenStream(within(t, time.Second), "echo")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	until(t, "the stream is served", func() bool { return s.Inspect().Streams == 1 })
	ci, si := c.Inspect(), s.Inspect()
	if ci.CallsMade != 3 || si.CallsServed != 3 || ci.CallsWaiting != 0 || si.CallsServing != 0 || ci.Streams != 1 {
		t.Errorf("client %+v, service %+v", ci, si)
	}
	until(t, "all bytes have come", func() bool { return c.Inspect().Sent == s.Inspect().Received && c.Inspect().Sent > 0 })
	own, peer, err := socket.Inodes(c)
	if err != nil || ci.Socket != own || ci.PeerSocket != peer || si.Socket == 0 || peer != 0 && si.Socket != peer {
		t.Errorf("inodes %d and %d, %v; client %+v, service %+v", own, peer, err, ci, si)
	}
}

func TestAnInspectionNamesWhatIsInFlightAndHowLongItMayStay(t *testing.T) {
	held := make(chan struct{})
	defer close(held)
	h := usual
	h.streams = maps.Clone(usual.streams)
	h.streams["hold"] = func(ctx context.Context, s *session.Stream) error {
		select {
		case <-held:
		case <-ctx.Done():
		}
		return nil
	}
	c, s := both(t, h)
	soon, late := time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	for _, from := range []*session.Session{c, s} {
		for _, until := range []time.Time{late, soon, {}} {
			ctx, cancel := context.WithCancel(t.Context())
			if !until.IsZero() {
				ctx, cancel = context.WithDeadline(t.Context(), until)
			}
			called := make(chan error, 1)
			go func() { called <- from.Call(ctx, "block", nil, nil) }()
			defer func() { cancel(); <-called }()
		}
	}
	raw, err := c.OpenStream(within(t, 20*time.Second), "hold")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if _, err := raw.Write(make([]byte, 10_000)); err != nil {
		t.Fatal(err)
	}
	values := begin(t, s, "repeat", nil)
	defer values.Close()
	if err := values.Send("x"); err != nil {
		t.Fatal(err)
	}
	var ci, si wire.Inspection
	until(t, "all is in flight", func() bool {
		ci, si = c.Inspect(), s.Inspect()
		return len(ci.Calls) == 6 && len(si.Calls) == 6 && len(ci.OpenStreams) == 2 && len(si.OpenStreams) == 2 && si.OpenStreams[0].Kind+si.OpenStreams[1].Kind != "" && si.Unread > 0
	})
	for side, in := range map[string]wire.Inspection{"client": ci, "service": si} {
		served := 0
		for i, call := range in.Calls {
			want := []time.Time{soon, soon, late, late, {}, {}}[i]
			if off := call.Deadline.Time().Sub(want).Abs(); call.Method != "block" || (call.Deadline == 0) != want.IsZero() || off > time.Minute {
				t.Errorf("%s: call %d is %+v, want a deadline of %v", side, i, call, want)
			}
			if call.Served {
				served++
			}
		}
		if served != 3 {
			t.Errorf("%s: %d of its calls are served there, want 3", side, served)
		}
	}
	of := func(list []wire.StreamInfo, method string) wire.StreamInfo {
		i := slices.IndexFunc(list, func(st wire.StreamInfo) bool { return st.Method == method })
		if i < 0 || time.Since(list[i].OpenedAt.Time()) > time.Minute {
			t.Fatalf("%+v: no %s of this minute", list, method)
		}
		return list[i]
	}
	for _, test := range []struct {
		in     wire.Inspection
		method string
		kind   string
		served bool
	}{{ci, "hold", wire.StreamRaw, false}, {si, "hold", "", true}, {ci, "repeat", wire.StreamCall, true}, {si, "repeat", wire.StreamCall, false}} {
		if st := of(test.in.OpenStreams, test.method); st.Kind != test.kind || st.Served != test.served {
			t.Errorf("%+v, want %+v", st, test)
		}
	}
}

func TestAnInspectionNamesOnlySoMuchAsFitsIntoAFrame(t *testing.T) {
	name := strings.Repeat("m", wire.MaxMethod-5) + "block"
	c, s := both(t, handler{methods: methods{name: block}})
	ctx, cancel := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	for range 2 * wire.MaxInspected {
		calling.Go(func() { c.Call(ctx, name, nil, nil) })
	}
	for i := range wire.MaxFacts {
		for _, side := range []*session.Session{c, s} {
			if err := side.SetFact(fmt.Sprintf("%0*d", wire.MaxFact, i), strings.Repeat("x", wire.MaxFact)); err != nil {
				t.Fatal(err)
			}
		}
	}
	var in wire.Inspection
	until(t, "all calls are served", func() bool {
		in = s.Inspect()
		return in.CallsServing == 2*wire.MaxInspected && len(in.PeerFacts) == wire.MaxFacts
	})
	in.OpenStreams = slices.Repeat([]wire.StreamInfo{{Method: name, Kind: wire.StreamCall, Served: true, OpenedAt: wire.At(time.Now())}}, wire.MaxInspected)
	if b, err := wire.Marshal(in); err != nil || len(in.Calls) != wire.MaxInspected || len(b) > wire.MaxBody {
		t.Errorf("%d calls in %d bytes, %v", len(in.Calls), len(b), err)
	}
	cancel()
	calling.Wait()
}

func TestAnInspectionTellsWhatWaitsForAPeerThatDoesNotRead(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	c := session.NewControl(a, session.Config{ID: session.NewID(), Endpoint: endpoint, Opener: true})
	ctx, cancel := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	for range 8 {
		calling.Go(func() { c.Call(ctx, "echo", strings.Repeat("x", 60_000), nil) })
	}
	until(t, "the socket is full, and what is behind it waits here", func() bool {
		in := c.Inspect()
		return in.Queued > 60_000 && in.SocketOut > 60_000 && in.SocketIn == 0 && in.Unread == 0
	})
	cancel()
	calling.Wait()
	b.Close()
	closes(t, c)
}

func TestAnIDIsRandomAndShownShort(t *testing.T) {
	a, b := session.NewID(), session.NewID()
	if err := errors.Join(wire.CheckID(a), wire.CheckID(b)); err != nil || a == b {
		t.Errorf("%s and %s, %v", a, b, err)
	}
	if got := session.ShortID(a); got != a[:8] {
		t.Errorf("%s of %s", got, a)
	}
	if got := session.ShortID("abc"); got != "abc" {
		t.Errorf("%s of abc", got)
	}
}
