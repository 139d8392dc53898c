package session_test

import (
	"errors"
	"fmt"
	"strings"
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
