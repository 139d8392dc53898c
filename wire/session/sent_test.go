package session_test

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

func TestOnlyWhatHasLeftSaysThatItWasSent(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	c, err := session.New(a, session.Config{Opener: true, Endpoint: "com.example.test"})
	if err != nil {
		t.Fatal(err)
	}
	const calls = 60 // of 60,000 bytes: within the credit, and far more than leaves for a peer that does not read
	results := make(chan error, calls)
	for range calls {
		go func() { results <- c.Call(t.Context(), "any", strings.Repeat("x", 60_000), nil) }()
	}
	until(t, "all calls are made", func() bool { return c.Inspect().CallsMade == calls })
	b.Close()
	sent := 0
	for range calls {
		e, ok := errors.AsType[*wire.Error](<-results)
		if !ok || e.Code != wire.Interrupted {
			t.Fatalf("call: %v, want %s", e, wire.Interrupted)
		}
		if e.Sent {
			sent++
		}
	}
	if sent == 0 || sent > calls/2 {
		t.Errorf("%d of %d calls say that they were sent", sent, calls)
	}
	c.Wait()
}

func TestDescriptorsOfARequestThatIsNotServedAreClosed(t *testing.T) {
	leavesNothing(t) // which counts them
	a, b := sockets(t)
	c := session.NewControl(a, session.Config{Opener: true})
	s := session.NewControl(b, session.Config{})
	three := carried{Files: openFiles(t, 3)}
	for range 20 {
		if err := c.Send(t.Context(), "nobody", three); err != nil {
			t.Fatal(err)
		}
	}
	socket.CloseFiles(three.Files)
	if err := c.Call(t.Context(), "nobody", nil, nil); !errors.Is(err, wire.UnknownMethod) {
		t.Errorf("%v, want %s", err, wire.UnknownMethod)
	}
	c.Close()
	s.Close()
	c.Wait()
	s.Wait()
}

func TestFactsThatCannotLeaveReplaceEachOther(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	c, err := session.New(a, session.Config{Opener: true, Endpoint: "com.example.test"})
	if err != nil {
		t.Fatal(err)
	}
	before := memory()
	for i := range 20_000 { // 80 MB of frames
		if err := c.SetFact("long", strings.Repeat(string(rune('a'+i%26)), wire.MaxFact)); err != nil {
			t.Fatal(err)
		}
		if i < wire.MaxFacts-1 {
			c.SetFact(strings.Repeat("x", i+1), strings.Repeat("y", wire.MaxFact))
		}
	}
	if grown := memory() - before; grown > 8<<20 {
		t.Errorf("facts for a peer that does not read hold %d KiB", grown>>10)
	}
	b.Close()
	c.Close()
	c.Wait()
}

// memory returns how many bytes of the heap are in use.
func memory() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// openFiles returns n open files.
func openFiles(t *testing.T, n int) (list []*os.File) {
	t.Helper()
	for range n {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, f)
	}
	return list
}
