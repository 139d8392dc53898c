package faults

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// What callers and workers say to each other.
type (
	work struct {
		ID    uint64        `msgpack:"i"`
		After int64         `msgpack:"a,omitempty"` // one-way messages that the session has sent before
		Takes time.Duration `msgpack:"t,omitempty"`
		Text  string        `msgpack:"x,omitempty"`
	}
	note struct {
		ID     uint64 `msgpack:"i"`
		Number int64  `msgpack:"n"` // of the session's one-way messages, from 1 on
	}
	parcel struct {
		ID   uint64   `msgpack:"i"`
		File *os.File `msgpack:"f"`
	}
	// A self is what a worker says of itself.
	self struct {
		PID         int `msgpack:"p"`
		Goroutines  int `msgpack:"g"`
		Descriptors int `msgpack:"d"`
	}
)

// A worker is an instance of a service.
type worker struct {
	place
	name string
	done *ledger
	lies string // Config.Break

	mu    sync.Mutex
	notes map[string]int64 // one-way messages that have come, by session
	count int64            // of all that was executed
	kept  []*os.File       // its lock, and what one that leaks has been passed
}

// playWorker serves an endpoint until it is told to end. Its arguments are the endpoint's name and the place.
func playWorker(args []string) error {
	w := &worker{name: args[0], place: place(args[1]), lies: os.Getenv(breakVariable), notes: map[string]int64{}}
	if err := w.alone(); err != nil {
		return err
	}
	var err error
	if w.done, err = openLedger(w.at("done")); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	if len(args) > 2 { // a stranger, which goes with the machine
		go func() {
			io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	return services.Server{
		Endpoints: map[string]*services.Mux{w.name: w.mux()}, Socket: w.socket(), Opened: w.opened, Drain: time.Second,
		Logger: slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	}.Serve(ctx)
}

// alone locks what each instance of the service locks for its life, and finds another that has it.
func (w *worker) alone() error {
	f, err := os.OpenFile(w.at("alone", w.name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(dying); unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil; time.Sleep(time.Millisecond) {
		text := make([]byte, 100)
		n, _ := f.ReadAt(text, 0)
		if time.Now().After(deadline) {
			w.find(duplicateInstance, "%s: process %d finds process %s", w.name, os.Getpid(), text[:n])
			return fmt.Errorf("%s has another instance", w.name)
		}
	}
	f.Truncate(0)
	fmt.Fprint(f, os.Getpid())
	w.kept = append(w.kept, f)
	return nil
}

func (w *worker) mux() *services.Mux {
	mux := services.NewMux()
	services.Handle(mux, "work", w.work)
	services.HandleOneWay(mux, "note", w.note)
	services.Handle(mux, "pass", w.pass)
	services.HandleStreaming(mux, "sum", w.sum)
	services.HandleStream(mux, "raw", w.raw)
	services.Handle(mux, "self", func(context.Context, any) (self, error) {
		return self{os.Getpid(), runtime.NumGoroutine(), countDescriptors("self")}, nil
	})
	return mux
}

func countDescriptors(pid string) int {
	entries, err := os.ReadDir("/proc/" + pid + "/fd")
	if err != nil {
		return -1
	}
	return len(entries)
}

// opened has what is known of a session forgotten with it.
func (w *worker) opened(s *session.Session) {
	s.OnEnd(func(wire.End) {
		go func() { // one-way messages that came before the end may still be handled
			s.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.notes, s.ID())
		}()
	})
}

// executed notes an execution. One that lies breaks a promise now and then.
func (w *worker) executed(id uint64) {
	w.mu.Lock()
	w.count++
	lie := w.count%50 == 0
	w.mu.Unlock()
	switch {
	case lie && w.lies == lieTwice:
		w.done.executed(id)
	case lie && w.lies == lieNever:
		return
	case lie && w.lies == lieGoroutine:
		go func() { select {} }()
	}
	w.done.executed(id)
}

func (w *worker) work(ctx context.Context, r work) (work, error) {
	id := services.FromContext(ctx).ID()
	w.mu.Lock()
	before := w.notes[id]
	w.mu.Unlock()
	if before < r.After {
		w.find(disorder, "%s: call %x of session %s came behind %d one-way messages, and %d had been taken up", w.name, r.ID, id, r.After, before)
	}
	w.executed(r.ID)
	if r.Takes > 0 {
		select {
		case <-time.After(r.Takes):
		case <-ctx.Done():
			return work{}, ctx.Err()
		}
	}
	if w.lies == lieReply && r.ID%50 == 0 {
		r.ID++
	}
	return work{ID: r.ID, Text: strings.ToUpper(r.Text)}, nil
}

func (w *worker) note(ctx context.Context, n note) error {
	id := services.FromContext(ctx).ID()
	w.mu.Lock()
	last := w.notes[id]
	w.notes[id] = n.Number
	w.mu.Unlock()
	if n.Number != last+1 {
		w.find(disorder, "%s: one-way message %d of session %s came behind %d", w.name, n.Number, id, last)
	}
	if w.lies == lieOrder && n.ID%50 == 0 {
		w.mu.Lock()
		w.notes[id]--
		w.mu.Unlock()
	}
	w.executed(n.ID)
	return nil
}

// pass writes the parcel's id to the descriptor in it, and answers with one to read it from.
func (w *worker) pass(_ context.Context, p parcel) (parcel, error) {
	if p.File == nil {
		return parcel{}, fmt.Errorf("a parcel without a descriptor")
	}
	w.executed(p.ID)
	fmt.Fprint(p.File, p.ID)
	if w.lies == lieDescriptor {
		w.mu.Lock()
		w.kept = append(w.kept, p.File)
		w.mu.Unlock()
	} else {
		p.File.Close()
	}
	r, wr, err := os.Pipe()
	if err != nil { // it is starved
		return parcel{}, wire.Errorf(wire.OverQuota, "make a pipe: %v", err)
	}
	fmt.Fprint(wr, p.ID)
	wr.Close()
	return parcel{ID: p.ID, File: r}, nil // the session closes it
}

// sum answers each number with the sum of all so far.
func (w *worker) sum(_ context.Context, r work, s *services.Streaming[int64, int64]) error {
	w.executed(r.ID)
	var sum int64
	for n, err := range s.All() {
		if err != nil {
			return err
		}
		sum += n
		if err := s.Send(sum); err != nil {
			return err
		}
	}
	return nil
}

// raw echoes a stream, which begins with its id.
func (w *worker) raw(_ context.Context, s *session.Stream) error {
	var id [8]byte
	if _, err := io.ReadFull(s, id[:]); err != nil {
		return err
	}
	w.executed(binary.BigEndian.Uint64(id[:]))
	if _, err := io.Copy(s, s); err != nil {
		return err
	}
	return s.CloseWrite()
}
