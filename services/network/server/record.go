package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// rewriteSlack is how many lines a record may have beside those of the leases that are held before it is written anew.
const rewriteSlack = 1024

// A record writes down which leases are held by whom, for the next instance to read after a crash.
//
// It is a file that is only appended to: a lease is in it before the reply to its allocate is written. What is over is written later: until then the
// next instance would ask the kernel for a holder that is gone, or keep an address for longer than needed. Nothing is flushed to disk: a process's
// death loses nothing that it has written, and no lease outlives the machine.
//
// What the table holds is in the table first and in the record then, so that writing the record anew from the table misses nothing.
type record struct {
	folder   string
	boot     string
	snapshot func() []entry // of the table
	log      *slog.Logger

	// turn has one place: who has put its token there may use the files, and guards what follows.
	turn       chan struct{}
	file       *os.File // nil: it must be written anew
	generation int64
	size       int64
	lines      int
	limit      int // lines at which it is written anew
	closed     bool

	wanted chan struct{} // sent to when something waits

	mu    sync.Mutex
	later []entry // waits to be written: at most two for each lease that ended, and while that fails no lease is recorded
	anew  bool    // it is to be written anew
}

// newRecord returns a record that is not opened yet.
func newRecord(folder, boot string, snapshot func() []entry, log *slog.Logger) *record {
	return &record{folder: folder, boot: boot, snapshot: snapshot, log: log, turn: make(chan struct{}, 1), wanted: make(chan struct{}, 1)}
}

// open makes the folder and begins a record of what the table holds.
func (r *record) open() error {
	if err := os.MkdirAll(r.folder, 0o700); err != nil {
		return fmt.Errorf("make the folder of the record of leases: %w", err)
	}
	return r.rewrite()
}

func (r *record) path() string { return filepath.Join(r.folder, recordName) }

// append writes e and returns when it is in the record.
func (r *record) append(ctx context.Context, e entry) error {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return r.write(e)
}

// write appends entries, in one write. If that fails none of them is in the record. Where the file was removed, or could not be left whole, it is
// written anew from the table, which has the entries already.
func (r *record) write(entries ...entry) error {
	if r.closed {
		return fmt.Errorf("write the record of leases: %w", os.ErrClosed)
	}
	if r.file == nil || r.removed() {
		return r.rewrite()
	}
	var text []byte
	for _, e := range entries {
		text = append(text, e.encode()...)
	}
	if _, err := r.file.Write(text); err != nil {
		if cutErr := r.file.Truncate(r.size); cutErr != nil {
			r.close()
		}
		return fmt.Errorf("write the record of leases: %w", err)
	}
	r.size += int64(len(text))
	r.lines += len(entries)
	r.sign()
	return nil
}

// removed reports whether somebody removed or replaced the file, so that the next instance would not find it.
func (r *record) removed() bool {
	var own, there unix.Stat_t
	raw, err := r.file.SyscallConn()
	if err != nil {
		return true
	}
	ctlErr := raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &own) })
	if errors.Join(ctlErr, err, unix.Stat(r.path(), &there)) != nil {
		return true
	}
	return own.Ino != there.Ino || own.Dev != there.Dev
}

// sign notes how long the record is. If that fails, the old sign stands: the record is longer than it says, which is right too.
func (r *record) sign() {
	text := sign{boot: r.boot, generation: r.generation, size: r.size}.encode()
	file, err := openRegular(filepath.Join(r.folder, signName), os.O_WRONLY|os.O_CREATE)
	if err == nil {
		_, err = file.WriteAt(text, 0)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		r.log.Warn("cannot note the length of the record of leases", "err", err)
	}
}

// rewrite replaces the record by one of what the table holds. If that fails the old one stays as it is.
func (r *record) rewrite() error {
	later, anew := r.takeLater() // the table knows them
	head := entry{Kind: entryHead, Version: recordVersion, Boot: r.boot, Generation: time.Now().UnixNano()}
	entries := append([]entry{head}, r.snapshot()...)
	var text bytes.Buffer
	for _, e := range entries {
		text.Write(e.encode())
	}
	file, err := replace(r.path(), text.Bytes())
	if err != nil {
		r.giveBack(later, anew)
		r.limit = 2*r.lines + rewriteSlack // not again at once
		return fmt.Errorf("write the record of leases: %w", err)
	}
	r.close()
	r.file, r.generation, r.size, r.lines = file, head.Generation, int64(text.Len()), len(entries)
	r.limit = 2*r.lines + rewriteSlack
	r.sign()
	return nil
}

// replace puts a new file with text at path, and returns it open for appending.
func replace(path string, text []byte) (*os.File, error) {
	next := path + ".new"
	os.Remove(next) // whatever an earlier instance, or somebody else, left there
	file, err := openRegular(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND)
	if err != nil {
		return nil, err
	}
	if _, err = file.Write(text); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(next))
	}
	return file, nil
}

// close lets the file go; the record has to be written anew.
func (r *record) close() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
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

// takeLater takes what waits to be written.
func (r *record) takeLater() (later []entry, anew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	later, anew = r.later, r.anew
	r.later, r.anew = nil, false
	return later, anew
}

// giveBack has what could not be written wait again.
func (r *record) giveBack(later []entry, anew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.later, r.anew = append(later, r.later...), r.anew || anew
}

// tend writes what waits, until ctx ends, and then what is left, and closes the record.
func (r *record) tend(ctx context.Context) {
	for done := false; !done; {
		select {
		case <-r.wanted:
		case <-ctx.Done():
			done = true
		}
		r.turn <- struct{}{}
		if err := r.tidy(); err != nil {
			r.log.Warn("after a crash of this instance addresses would be kept for longer than needed", "err", err)
		}
		if done {
			r.close()
			r.closed = true
		}
		<-r.turn
	}
}

// tidy writes what waits, or all anew where that is wanted or too much of it is of leases that are over.
func (r *record) tidy() error {
	later, anew := r.takeLater()
	if anew || r.lines+len(later) > r.limit {
		r.giveBack(nil, anew)
		if r.rewrite() == nil {
			return nil
		}
	}
	if len(later) == 0 {
		return nil
	}
	err := r.write(later...)
	if err != nil {
		r.giveBack(later, false)
	}
	return err
}
