package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
)

// A wrong frame is what a connection begins with that no client would send.
type wrongFrame struct {
	name  string
	bytes []byte
	stay  bool // the connection stays open, and nothing more comes
	code  wire.Code
}

// wrongFrames are all kinds of them. One without a code is closed without an answer.
func wrongFrames() []wrongFrame {
	header := func(h wire.Header) []byte { return h.Append(nil) }
	frame := func(kind wire.Kind, body string) []byte {
		return append(header(wire.Header{Kind: kind, Length: uint32(len(body))}), body...)
	}
	open := frame(wire.KindOpen, "\x81\xa1e\xa0")
	other := bytes.Clone(open)
	other[0] = 2
	return []wrongFrame{
		{name: "nothing"},
		{name: "nothing, and stays", stay: true},
		{name: "half a header", bytes: open[:5]},
		{name: "half a header, and stays", bytes: open[:5], stay: true},
		{name: "half a body", bytes: open[:14]},
		{name: "half a body, and stays", bytes: open[:14], stay: true},
		{name: "oversized", bytes: header(wire.Header{Kind: wire.KindOpen, Length: wire.MaxBody + 1}), code: wire.Malformed},
		{name: "the longest length", bytes: header(wire.Header{Kind: wire.KindOpen, Length: 1<<32 - 1}), code: wire.Malformed},
		{name: "a large body", bytes: header(wire.Header{Kind: wire.KindLarge, Length: wire.MaxLarge}), code: wire.Malformed},
		{name: "HTTP", bytes: []byte("GET / HTTP/1.1\r\nHost: broker\r\n\r\n"), code: wire.Unsupported},
		{name: "yamux", bytes: append([]byte{0, 1, 0, 1}, make([]byte, 8)...), code: wire.Unsupported},
		{name: "another version", bytes: other, code: wire.Unsupported},
		{name: "an unknown kind", bytes: header(wire.Header{Kind: 99}), code: wire.Malformed},
		{name: "unknown flags", bytes: header(wire.Header{Kind: wire.KindOpen, Flags: 0x80}), code: wire.Malformed},
		{name: "descriptors that are not there", bytes: append([]byte{wire.Version, byte(wire.KindOpen), 3, 0}, make([]byte, 8)...), code: wire.Malformed},
		{name: "no first frame", bytes: frame(wire.KindAccepted, "\x80"), code: wire.Malformed},
		{name: "an empty open", bytes: frame(wire.KindOpen, ""), code: wire.Malformed},
		{name: "an open without an endpoint", bytes: open, code: wire.Malformed},
		{name: "an array of four thousand million", bytes: frame(wire.KindOpen, "\xdd\xff\xff\xff\xff"), code: wire.Malformed},
		{name: "a map of four thousand million", bytes: frame(wire.KindRegister, "\xdf\xff\xff\xff\xff"), code: wire.Malformed},
		{name: "a long array within", bytes: frame(wire.KindRegister, "\x81\xa1s\xdd\xff\xff\xff\xff"), code: wire.Malformed},
		{name: "a deep nest", bytes: frame(wire.KindOpen, "\x81\xa1x"+strings.Repeat("\x91", 60000)), code: wire.Malformed},
		{name: "a wide array of arrays", bytes: frame(wire.KindRegister, "\x81\xa1s\xdc\xea\x60"+strings.Repeat("\x80", 60000)), code: wire.Malformed},
	}
}

func TestWrongFirstFramesAreAnsweredOrClosedAndDisturbNobody(t *testing.T) {
	w := newWorld(t, one)
	w.startBroker()
	stop := w.wellBehaved()
	w.flood(wrongFrames(), count(2000, 10000), 7*time.Second) // a first frame has 5 s
	calls, longest := stop()
	t.Logf("meanwhile %d calls and as many opens were answered, the slowest within %v", calls, longest)
	if calls == 0 || longest > 5*time.Second {
		t.Error("that is not undisturbed")
	}
}

// The memory is measured of a broker without the race detector, whose own follows each goroutine there was. It is measured while the broker holds no more
// garbage than it must, beside a client that keeps its collector going. The broker has had wrong frames and more sessions than it remembers before, so that
// what is measured is what further frames cost. A leak grows in every round, and what the Go runtime moves about does not.
func TestWrongFirstFramesCostTheBrokerNoMemory(t *testing.T) {
	w := newWorld(t, one)
	if raceEnabled {
		w.brokerd = filepath.Join(w.dir, "brokerd")
		build(t, w.brokerd)
	}
	w.startBroker("GOMEMLIMIT=8MiB", "GOGC=10")
	stop := w.wellBehaved()
	defer stop()
	const bound = 1024 // KiB
	n := count(2000, 10000)
	w.flood(slices.DeleteFunc(wrongFrames(), func(f wrongFrame) bool { return f.stay }), 1000, patience)
	before := w.settledMemory()
	for round := 1; ; round++ {
		w.flood(wrongFrames(), n, patience)
		after := w.settledMemory()
		t.Logf("the broker's private memory: %d KiB before and %d KiB after %d wrong frames", before, after, n)
		if after-before < bound {
			return
		}
		if before = after; round == 3 {
			t.Fatalf("it grows by more than %d KiB in each of %d rounds", bound, round)
		}
	}
}

// build builds a brokerd without the race detector.
func build(t *testing.T, path string) {
	t.Helper()
	if out, err := exec.Command("go", "build", "-o", path, "../cmd/brokerd").CombinedOutput(); err != nil {
		t.Fatalf("build brokerd: %v\n%s", err, out)
	}
}

// flood sends n wrong frames, many at a time. Each must be answered within a time.
func (w *world) flood(kinds []wrongFrame, n int, limit time.Duration) {
	w.t.Helper()
	places := make(chan struct{}, 250)
	var sending sync.WaitGroup
	var told sync.Map // kinds of which a failure was told
	for i := range n {
		kind := kinds[i%len(kinds)]
		if kind.stay && i%(4*len(kinds)) >= len(kinds) {
			kind.stay = false // one that stays needs a place for 5 s
		}
		places <- struct{}{}
		sending.Go(func() {
			defer func() { <-places }()
			if err := w.provoke(kind, limit); err != nil {
				if _, again := told.Swap(kind.name, true); !again {
					w.t.Errorf("%s: %v", kind.name, err)
				}
			}
		})
	}
	sending.Wait()
}

// provoke sends one wrong frame and checks what comes back.
func (w *world) provoke(kind wrongFrame, limit time.Duration) error {
	c, err := net.Dial("unix", w.socket)
	for errors.Is(err, syscall.EAGAIN) { // the backlog is full
		c, err = net.Dial("unix", w.socket)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	begun := time.Now()
	c.SetDeadline(begun.Add(patience))
	if _, err := c.Write(kind.bytes); err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	if !kind.stay && kind.code == "" {
		c.(*net.UnixConn).CloseWrite()
	}
	answer, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	if took := time.Since(begun); took > limit {
		return fmt.Errorf("answered after %v", took)
	}
	return checkAnswer(kind, answer)
}

func checkAnswer(kind wrongFrame, answer []byte) error {
	if kind.code == "" {
		if len(answer) > 0 {
			return fmt.Errorf("answered %q, want a close", answer)
		}
		return nil
	}
	f, err := wire.ReadFrame(func(n int) ([]byte, error) {
		if len(answer) < n {
			return nil, io.ErrUnexpectedEOF
		}
		b := answer[:n]
		answer = answer[n:]
		return b, nil
	})
	if err != nil {
		return fmt.Errorf("answered: %w", err)
	}
	refusal := &wire.Error{}
	if err := wire.Unmarshal(f.Body, refusal); f.Kind != wire.KindRefused || err != nil || refusal.Code != kind.code {
		return fmt.Errorf("answered with a %v: %+v (%v), want refused: %s", f.Kind, refusal, err, kind.code)
	}
	return nil
}

// wellBehaved calls and opens without a pause until it is stopped. It returns how many calls there were and how long the slowest call or open took.
func (w *world) wellBehaved() (stop func() (calls int, longest time.Duration)) {
	w.t.Helper()
	s := w.dial(broker.Endpoint)
	ctx, cancel := context.WithCancel(w.t.Context())
	var calling sync.WaitGroup
	var calls int
	var longest time.Duration
	timed := func(what string, f func() error) {
		begun := time.Now()
		if err := f(); err != nil && ctx.Err() == nil {
			w.t.Errorf("%s of a client that behaves well: %v", what, err)
		}
		longest = max(longest, time.Since(begun))
	}
	calling.Go(func() {
		for ; ctx.Err() == nil; calls++ {
			timed("a call", func() error {
				_, err := client.Call[broker.Status](ctx, s, broker.MethodStatus, nil)
				return err
			})
			timed("an open", func() error {
				s, err := client.Dial(ctx, broker.Endpoint, client.Options{Socket: w.socket, NoWait: true})
				if err == nil {
					s.Close()
				}
				return err
			})
		}
	})
	return func() (int, time.Duration) {
		cancel()
		calling.Wait()
		return calls, longest
	}
}

// settledMemory returns the broker's private dirty memory in KiB, see proc_pid_smaps(5): what it costs the machine, without what a program file
// maps. It waits until no further reading is smaller, for the Go runtime gives memory back little by little.
func (w *world) settledMemory() int {
	w.t.Helper()
	least, since := w.memory(), 0
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ; since < 20; since++ {
		<-tick.C
		if now := w.memory(); now < least-16 {
			least, since = now, 0
		}
	}
	return least
}

func (w *world) memory() int {
	w.t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(w.broker.pid()) + "/smaps_rollup")
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Private_Dirty:" {
			n, err := strconv.Atoi(fields[1])
			if err == nil {
				return n
			}
		}
	}
	w.t.Fatalf("no Private_Dirty in %s", text)
	return 0
}
