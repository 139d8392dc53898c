package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/e2e/internal/stage"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestWrongFirstFramesAreAnsweredOrClosedAndDisturbNobody(t *testing.T) {
	w := newWorld(t, one)
	w.startBroker()
	stop := w.wellBehaved()
	w.flood(stage.WrongFrames(), count(2000, 10000), 7*time.Second) // a first frame has 5 s
	calls, longest := stop()
	t.Logf("meanwhile %d calls and as many opens were answered, the slowest within %v", calls, longest)
	if calls == 0 || longest > 5*time.Second {
		t.Error("that is not undisturbed")
	}
}

// The memory is measured of a broker without the race detector, whose own follows each goroutine there was. It is measured while the broker holds no more
// garbage than it must, beside a client that keeps its collector going. The broker has had wrong frames and more sessions than it remembers before, so that
// what is measured is what further frames cost. A leak grows in every round. What the Go runtime keeps of the most goroutines and connections there ever
// were at once, of which a round may have more than the one before, comes to its end after a few.
func TestWrongFirstFramesCostTheBrokerNoMemory(t *testing.T) {
	w := newWorld(t, one)
	if stage.RaceEnabled {
		w.brokerd = filepath.Join(w.dir, "brokerd")
		build(t, w.brokerd)
	}
	w.startBroker("GOMEMLIMIT=8MiB", "GOGC=10")
	stop := w.wellBehaved()
	defer stop()
	const bound = 1024 // KiB
	n := count(2000, 10000)
	w.flood(stage.WrongFrames(), 2000, patience)
	before := w.settledMemory()
	for round := 1; ; round++ {
		w.flood(stage.WrongFrames(), n, patience)
		after := w.settledMemory()
		t.Logf("the broker's private memory: %d KiB before and %d KiB after %d wrong frames", before, after, n)
		if after-before < bound {
			return
		}
		if before = after; round == 8 {
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
func (w *world) flood(kinds []stage.WrongFrame, n int, limit time.Duration) {
	w.t.Helper()
	places := make(chan struct{}, 250)
	var sending sync.WaitGroup
	var told sync.Map // kinds of which a failure was told
	for i := range n {
		kind := kinds[i%len(kinds)]
		if kind.Stay && i%(4*len(kinds)) >= len(kinds) {
			kind.Stay = false // one that stays needs a place for 5 s
		}
		places <- struct{}{}
		sending.Go(func() {
			defer func() { <-places }()
			if err := w.provoke(kind, limit); err != nil {
				if _, again := told.Swap(kind.Name, true); !again {
					w.t.Errorf("%s: %v", kind.Name, err)
				}
			}
		})
	}
	sending.Wait()
}

// provoke sends one wrong frame and checks what comes back.
func (w *world) provoke(kind stage.WrongFrame, limit time.Duration) error {
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
	if _, err := c.Write(kind.Bytes); err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	if !kind.Stay && kind.Code == "" {
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

func checkAnswer(kind stage.WrongFrame, answer []byte) error {
	if kind.Code == "" {
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
	if err := wire.Unmarshal(f.Body, refusal); f.Kind != wire.KindRefused || err != nil || refusal.Code != kind.Code {
		return fmt.Errorf("answered with a %v: %+v (%v), want refused: %s", f.Kind, refusal, err, kind.Code)
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
