package server

import (
	"context"
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
// It is a file that is only appended to: a lease is in it before the reply to its allocate is written. What is over is written later: until then the
// next instance would ask the kernel for a holder that is gone, or keep an address for longer than needed. Nothing is flushed to disk: a process's
// death loses nothing that it has written, and no lease outlives the machine.
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
	note   *os.File // that has the sign; nil: it is not open
	limit  int      // lines at which it is written anew
	closed bool

	wanted chan struct{} // sent to when something waits

	mu    sync.Mutex
	later []entry // waits to be written: at most two for each lease that ended, and while that fails no lease is recorded
	anew  bool    // it is to be written anew
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
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return r.write(make())
}

// write appends entries, in one write. If that fails none of them is in the record. Where the file was removed, or could not be left whole, it is
// written anew from the table, which has the entries already.
func (r *record) write(entries ...entry) error {
	if r.closed {
		return fmt.Errorf("write the record of leases: %w", os.ErrClosed)
	}
	if r.now == nil || r.removed() {
		return r.rewrite()
	}
	if err := r.now.append(entries); err != nil {
		if r.now.cut() != nil {
			r.close()
		}
		return fmt.Errorf("write the record of leases: %w", err)
	}
	if r.next != nil {
		r.next.missed = append(r.next.missed, entries...)
	}
	r.sign()
	return nil
}

// removed reports whether somebody removed or replaced the file, so that the next instance would not find it.
func (r *record) removed() bool {
	there, err := os.Stat(r.path())
	return err != nil || !os.SameFile(there, r.now.info)
}

// sign notes how long the record is, and the one that may take its place. If that fails, the old sign stands: the record is longer than it says, which is right too.
func (r *record) sign() {
	next := sign{boot: r.boot}
	if r.next != nil {
		next.generation, next.size = r.next.generation, r.next.size
	}
	err := r.openNote()
	if err == nil {
		_, err = r.note.WriteAt(append(sign{boot: r.boot, generation: r.now.generation, size: r.now.size}.encode(), next.encode()...), 0)
	}
	if err != nil {
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

// openNote opens the file that has the sign, if it is not open.
func (r *record) openNote() (err error) {
	if r.note == nil {
		r.note, err = openRegular(filepath.Join(r.folder, signName), os.O_WRONLY|os.O_CREATE)
	}
	return err
}

// close lets the file go; the record has to be written anew.
func (r *record) close() {
	if r.now != nil {
		r.now.file.Close()
		r.now = nil
	}
}

// soon has e written soon.
func (r *record) soon(e entry) {
	r.mu.Lock()
	r.later = append(r.later, e)
	r.mu.Unlock()
	r.wake()
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

// waiting returns the first entries that wait to be written. They wait until written is told how many were.
func (r *record) waiting() []entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.later[:min(len(r.later), laterStep)]
}

func (r *record) written(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.later = r.later[n:]; len(r.later) == 0 {
		r.later = nil
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
				r.abandon()
				r.close()
				if r.note != nil {
					r.note.Close()
				}
				r.closed = true
			}
			<-r.turn
		}
	}
}

// tidy does one step of what is to be done, and reports whether there is more.
func (r *record) tidy() (more bool) {
	if later := r.waiting(); len(later) > 0 {
		if err := r.write(later...); err != nil {
			r.warn("after a crash of this instance addresses would be kept for longer than needed", "err", err)
			return false
		}
		r.written(len(later))
	}
	if err := r.shorten(); err != nil {
		r.warn("the record of leases has more lines than it needs", "err", err)
		return false
	}
	return r.next != nil || len(r.waiting()) > 0
}
