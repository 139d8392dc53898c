package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/internal/pace"
)

// laterStep is how many entries that wait are written at a time.
const laterStep = 64

// A record writes down which leases are held by whom, for the next instance to read after a crash.
//
// It is a file that is only appended to: a lease is in it before the reply to its allocate is written, and its end before the reply to its release. What is over
// otherwise is written a little later: until then the next instance would ask the kernel for a holder that is gone, or keep an address for longer than needed. Nothing is flushed
// to disk: a process's death loses nothing that it has stored, and no lease outlives the machine.
//
// What the table holds is in the table first and in the record then, so that copying the table misses nothing.
type record struct {
	folder string
	boot   string
	table  *Server
	log    *slog.Logger
	told   pace.Limiter

	// turn has one place: who has put its token there may use the files, and guards what follows.
	turn   chan struct{}
	now    *roll // nil: it must be written anew
	next   *copying
	note   *sheet // that has the sign; nil: it is not open
	limit  int    // lines at which it is written anew
	closed bool

	wanted chan struct{} // sent to when something is to be done

	mu      sync.Mutex
	later   []entry // waits to be written: at most two for each lease that ended, and while that fails no lease is recorded
	written int64   // how many no longer wait
	anew    bool    // it is to be written anew
}

// newRecord returns a record that is not opened yet.
func newRecord(folder, boot string, table *Server, log *slog.Logger) *record {
	return &record{folder: folder, boot: boot, table: table, log: log, turn: make(chan struct{}, 1), wanted: make(chan struct{}, 1)}
}

// open makes the folder and begins a record of what the table holds.
func (r *record) open() error {
	if err := os.MkdirAll(r.folder, 0o700); err != nil {
		return fmt.Errorf("make the folder of the record of leases: %w", err)
	}
	return r.rewrite()
}

func (r *record) path() string { return filepath.Join(r.folder, recordName) }

// append writes an entry, which is made when it is its turn, and returns when it is in the record.
func (r *record) append(ctx context.Context, make func() entry) error {
	if err := r.await(ctx); err != nil {
		return err
	}
	defer func() { <-r.turn }()
	return r.write(make())
}

// await waits for the turn. It asks ctx, whose channel costs a caller something, only where others have it.
func (r *record) await(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case r.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write appends entries. If that fails none of them is in the record. Where the file was removed, moved, replaced or cut, it is written anew from the table, which has the
// entries already.
func (r *record) write(entries ...entry) error {
	if r.closed {
		return fmt.Errorf("write the record of leases: %w", os.ErrClosed)
	}
	if r.now == nil {
		return r.rewrite()
	}
	switch err := r.now.append(entries); {
	case errors.Is(err, errLost):
		r.close()
		return r.rewrite()
	case err != nil:
		return fmt.Errorf("write the record of leases: %w", err)
	}
	if r.next != nil {
		r.next.missed = append(r.next.missed, entries...)
	}
	r.sign()
	return nil
}

// sign notes how long the record is, and the one that may take its place. If that fails, the old sign stands: the record is longer than it says, which is right too.
func (r *record) sign() {
	next := sign{boot: r.boot}
	if r.next != nil {
		next.generation, next.size = r.next.generation, r.next.size
	}
	text := next.append(sign{boot: r.boot, generation: r.now.generation, size: r.now.size}.append(make([]byte, 0, 256)))
	err := r.openNote(len(text))
	if err == nil {
		err = r.note.put(0, text)
	}
	if err != nil {
		r.closeNote() // somebody may have cut it
		r.warn("cannot note the length of the record of leases", "err", err)
	}
}

// warn logs what cannot be written. On a full disk each lease can cause it.
func (r *record) warn(what string, args ...any) {
	tell, untold := r.told.Admit(time.Now())
	if tell && untold > 0 {
		args = append(args, "more", untold)
	}
	if tell {
		r.log.Warn(what, args...)
	}
}

// openNote opens the file that has the sign, if it is not open, with room for so many bytes.
func (r *record) openNote(size int) (err error) {
	if r.note == nil {
		r.note, err = openSheet(filepath.Join(r.folder, signName), os.O_CREATE)
	}
	if err == nil {
		err = r.note.grow(int64(size))
	}
	return err
}

func (r *record) closeNote() {
	if r.note != nil {
		r.note.close()
		r.note = nil
	}
}

// end lets all go. The file is left without the zeros at its end, which some other program might not read.
func (r *record) end() {
	r.abandon()
	if r.now != nil {
		_ = r.now.file.Truncate(r.now.size)
	}
	r.close()
	r.closeNote()
	r.closed = true
}

// close lets the file go; the record has to be written anew.
func (r *record) close() {
	if r.now != nil {
		r.now.close()
		r.now = nil
	}
}

// soon has e written by who calls settle, or by tend after a call of hurry.
func (r *record) soon(e entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.later = append(r.later, e)
}

// hurry has what waits written soon.
func (r *record) hurry() {
	r.mu.Lock()
	waits := len(r.later) > 0
	r.mu.Unlock()
	if waits {
		r.wake()
	}
}

// settle writes what waits by now, and returns when it is written. If that fails, or ctx ends first, it goes on waiting.
func (r *record) settle(ctx context.Context) {
	until := r.queued()
	for more := true; more; {
		if r.await(ctx) != nil {
			r.hurry()
			return
		}
		more = r.writeLater() && !r.reached(until)
		<-r.turn
	}
}

// queued returns how many entries ever waited, and reached whether so many have been written.
func (r *record) queued() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.written + int64(len(r.later))
}

func (r *record) reached(queued int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.written >= queued
}

// writeLater writes the first entries that wait, and reports whether it could.
func (r *record) writeLater() bool {
	r.mu.Lock()
	later := r.later[:min(len(r.later), laterStep)]
	r.mu.Unlock()
	if len(later) == 0 {
		return true
	}
	if err := r.write(later...); err != nil {
		r.warn("after a crash of this instance addresses would be kept for longer than needed", "err", err)
		return false
	}
	if r.tooLong() {
		r.wake()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written += int64(len(later))
	if r.later = r.later[len(later):]; len(r.later) == 0 {
		r.later = nil
	}
	return true
}

// renew has the record written anew soon.
func (r *record) renew() {
	r.mu.Lock()
	r.anew = true
	r.mu.Unlock()
	r.wake()
}

func (r *record) wake() {
	select {
	case r.wanted <- struct{}{}:
	default:
	}
}

// tend writes what waits, until ctx ends, and then what is left, and closes the record. Between each two steps others have their turn.
func (r *record) tend(ctx context.Context) {
	for done := false; !done; {
		select {
		case <-r.wanted:
		case <-ctx.Done():
			done = true
		}
		for more := true; more; {
			r.turn <- struct{}{}
			more = r.tidy()
			if done && !more {
				r.end()
			}
			<-r.turn
		}
	}
}

// tidy does one step of what is to be done, and reports whether there is more.
func (r *record) tidy() (more bool) {
	if !r.writeLater() {
		return false
	}
	if err := r.shorten(); err != nil {
		r.warn("the record of leases has more lines than it needs", "err", err)
		return false
	}
	return r.next != nil || !r.reached(r.queued())
}
