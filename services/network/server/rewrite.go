package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// copySlack is how many lines a record may have beside twice those that it had when it was last written anew, and copyStep how many leases are copied at a time.
// They are variables for tests.
var copySlack, copyStep = 1024, 64

// A roll is one file of a record, as long as it is used.
type roll struct {
	file       *os.File // for appending
	info       os.FileInfo
	generation int64
	size       int64
	lines      int
}

// append writes entries in one write. If that fails, cut takes away what was written of them.
func (f *roll) append(entries []entry) error {
	var text []byte
	for _, e := range entries {
		text = append(text, e.encode()...)
	}
	if _, err := f.file.Write(text); err != nil {
		return err
	}
	f.size += int64(len(text))
	f.lines += len(entries)
	return nil
}

func (f *roll) cut() error { return f.file.Truncate(f.size) }

// A copying is the roll that is to take the place of the one in use. It is written from the table some leases at a time, and others write to the record between, so
// that nobody waits for longer than a step takes, however many leases there are. What is written to the record meanwhile comes into it with the next step. At no moment
// is there less than one whole roll.
type copying struct {
	roll
	missed []entry // since the last step
	wanted bool    // by renew, so that it is tried again
}

func (r *record) nextPath() string { return r.path() + ".new" }

// shorten does one step of writing the record anew, if that is to be done.
func (r *record) shorten() error {
	r.mu.Lock()
	anew := r.anew
	r.anew = false
	r.mu.Unlock()
	if anew || r.next == nil && r.now != nil && r.now.lines > r.limit {
		if err := r.begin(anew); err != nil {
			return err
		}
	}
	if r.next == nil {
		return nil
	}
	return r.proceed()
}

// rewrite writes the record anew at once, where there is none to go on with. If that fails all stays as it is.
func (r *record) rewrite() error {
	if err := r.begin(false); err != nil {
		return err
	}
	for r.next != nil {
		if err := r.proceed(); err != nil {
			return err
		}
	}
	return nil
}

// begin begins a new roll. One that was begun before is abandoned.
func (r *record) begin(wanted bool) error {
	wanted = wanted || r.next != nil && r.next.wanted
	r.abandon()
	r.next = &copying{wanted: wanted}
	if err := os.Remove(r.nextPath()); err != nil && !errors.Is(err, fs.ErrNotExist) { // whatever an earlier instance, or somebody else, left there
		return r.fail(err)
	}
	file, err := openRegular(r.nextPath(), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND)
	if err != nil {
		return r.fail(err)
	}
	r.next.file, r.next.generation = file, time.Now().UnixNano()
	if r.next.info, err = file.Stat(); err != nil {
		return r.fail(err)
	}
	head := entry{Kind: entryHead, Version: recordVersion, Boot: r.boot, Generation: r.next.generation}
	if err := r.next.append(append([]entry{head}, r.table.beginCopy()...)); err != nil {
		return r.fail(err)
	}
	return nil
}

// proceed copies some leases and, when all are, has the new roll take the place of the old one.
func (r *record) proceed() error {
	leases, done := r.table.copySome(copyStep)
	if err := r.next.append(append(r.next.missed, leases...)); err != nil {
		return r.fail(err)
	}
	r.next.missed = nil
	if !done {
		return nil
	}
	if r.now != nil {
		r.sign()
	}
	if err := os.Rename(r.nextPath(), r.path()); err != nil {
		return r.fail(err)
	}
	r.close()
	r.now, r.next = &r.next.roll, nil
	r.limit = 2*r.now.lines + copySlack
	if r.note != nil { // it may have been removed with the record, so it is opened by its path again
		defer r.note.Close()
		r.note = nil
	}
	r.sign()
	return nil
}

// fail abandons the new roll because of err. It is not begun again at once.
func (r *record) fail(err error) error {
	if r.next.wanted {
		r.mu.Lock()
		r.anew = true
		r.mu.Unlock()
	}
	if r.now != nil {
		r.limit = 2*r.now.lines + copySlack
	}
	return fmt.Errorf("write the record of leases: %w", errors.Join(err, r.abandon()))
}

// abandon removes the new roll.
func (r *record) abandon() (err error) {
	if r.next == nil {
		return nil
	}
	if r.next.file != nil {
		err = errors.Join(r.next.file.Close(), os.Remove(r.nextPath()))
	}
	r.next = nil
	return err
}
