package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/wire"
)

// The floods, by name. Each is one session with the target, which it ends as it likes; n says which time it is.
var floods = map[string]func(h *hostile, n int){
	"pings": func(h *hostile, _ int) {
		go io.Copy(io.Discard, h.conn)
		for range 100 {
			h.send(repeat(mux(2, 1, 0, 7), 1000))
		}
	},
	"streams": func(h *hostile, _ int) {
		go io.Copy(io.Discard, h.conn)
		for range 10_000 {
			if !h.send(h.open(nil)) {
				return
			}
		}
	},
	"streams that begin and end": func(h *hostile, _ int) {
		for range 10_000 {
			if b := h.open(nil); !h.send(append(b, mux(1, 4, h.stream, 0)...)) {
				return
			}
		}
	},
	"giant lengths": func(h *hostile, n int) {
		giant := h.message(wire.KindRequest, "echo", 100)
		giants := [][]byte{
			mux(0, 1, 1, 1<<32-1), mux(1, 1, 1, 1<<32-1), {1, 16, 0, 0, 0, 0, 0, 1, 255, 255, 255, 255}, {1, 35, 0, 0, 0, 0, 0, 1, 255, 255, 255, 255},
			append(wire.Header{Kind: wire.KindRequest, ID: 1, Length: 5}.Append(nil), 0xdd, 255, 255, 255, 255),
			append(wire.Header{Kind: wire.KindRequest, ID: 1, Length: wire.MaxBody}.Append(nil), bytes.Repeat([]byte{0x91}, wire.MaxBody)...),
			append(giant[:12:12], bytes.Repeat([]byte{0xc6, 255}, 50)...),
			h.request(wire.KindRequest, wire.Request{Method: "echo", Length: 1 << 62}, wire.FlagLarge, 0),
		}
		h.send(giants[n%len(giants)])
		h.conn.CloseWrite()
		io.Copy(io.Discard, h.conn)
	},
	"closes": func(h *hostile, n int) { // at every point of a conversation
		stream, _ := wire.NewFrame(wire.KindStream, 0, wire.Stream{Method: "sink"})
		talk := slices.Concat(h.message(wire.KindRequest, "echo", 50), h.message(wire.KindOneWay, "hold", 20), h.open(stream.Append(nil)),
			h.request(wire.KindRequest, wire.Request{Method: "block", Length: 100_000}, wire.FlagLarge, 0), mux(2, 1, 0, 1))
		h.send(talk[:n%(len(talk)+1)])
		if n%3 == 0 {
			h.conn.CloseWrite()
			io.Copy(io.Discard, h.conn)
		}
	},
	"wrong frames": func(h *hostile, n int) {
		b := slices.Concat(h.message(wire.KindRequest, "echo", 50), h.open([]byte("no frame")), mux(3, 0, 0, 0))
		b[n%len(b)] ^= byte(1 + n%255)
		h.send(b)
		h.conn.CloseWrite()
		io.Copy(io.Discard, h.conn)
	},
}

// playFlooder makes the flood that its argument names, one session after the other, until its standard input ends.
func playFlooder(args []string) error {
	over := make(chan struct{})
	go func() { io.Copy(io.Discard, os.Stdin); close(over) }()
	for n := 0; ; n++ {
		select {
		case <-over:
			fmt.Println("sessions", n)
			return nil
		default:
		}
		h, err := openHostile(targetEndpoint)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EAGAIN) || errors.Is(err, wire.OverQuota) {
			continue // the broker has a bound, too
		} else if err != nil {
			return err
		}
		h.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		floods[args[0]](h, n)
		h.conn.Close()
	}
}

// guard: guard, flows and budget of wire/session, and the walk before each decode. A client that behaves well is beside the floods all the time.
func TestFloodsOfSessionsDisturbNobodyAndLeaveNothing(t *testing.T) {
	w := newWorld(t)
	w.startBroker()
	w.role("target").stdout.await(t, "ready")
	measuring, well := w.dial(measureEndpoint), w.dial(targetEndpoint)
	ask(t, measuring)
	quiet := ask(t, measuring)
	var took []time.Duration
	ctx, stop := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	calling.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			in, cancel := context.WithTimeout(context.Background(), patience)
			got, err := client.Call[string](in, well, "echo", "hello")
			cancel()
			if took = append(took, time.Since(began)); err != nil || got != "hello" {
				t.Errorf("a call beside the floods: %q, %v", got, err)
				return
			}
		}
	})
	var all []*process
	for name := range floods {
		cmd := exec.Command(self(), name)
		cmd.Env = []string{roleVariable + "=flooder"}
		all = append(all, w.start(cmd))
	}
	time.Sleep(time.Duration(count(1, 60)) * time.Second) // how long the floods last
	for _, p := range all {
		p.stdin.Close()
	}
	for _, p := range all {
		if code := p.exit(t); code != 0 {
			t.Errorf("%v exits %d: %v", p.cmd.Args[1:], code, p.stderr)
		}
		t.Logf("%v: %s", p.cmd.Args[1:], p.stdout.whole(t))
	}
	stop()
	calling.Wait()
	slices.Sort(took)
	t.Logf("%d calls beside them, half within %v, 99 of 100 within %v", len(took), took[len(took)/2], took[len(took)*99/100])
	// A session that has ended has goroutines that have yet to return, up to some thousands where it was a flood of streams, and the runtime keeps their memory.
	const leaves = 3 * keeps
	var after cost
	for range 3 { // a loaded machine takes its time
		if soon(func() bool {
			after = ask(t, measuring)
			return after.Goroutines <= quiet.Goroutines && after.Descriptors <= quiet.Descriptors && after.Memory < quiet.Memory+leaves
		}) {
			t.Logf("before %+v, after %+v", quiet, after)
			return
		}
	}
	t.Errorf("before %+v, and after the floods %+v", quiet, after)
}
