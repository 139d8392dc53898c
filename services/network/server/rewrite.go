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

// A roll is one file of a record, as long as it is used. Behind its last line are zeros.
type roll struct {
	*sheet
	generation int64
	size       int64 // of the lines
	lines      int
}

// append writes entries, all or, if that fails, none. Where it fails with errLost, none that came before may be in the file any more.
func (f *roll) append(entries []entry) error {
	text := make([]byte, 0, 512*len(entries))
	for _, e := range entries {
		text = e.append(text)
	}
	end := f.size + int64(len(text))
	err := f.check()
	if err == nil && f.grow(end-end%sheetStep+sheetStep) != nil {
		err = f.grow(end) // the disk may have room for this at least
	}
	if err == nil {
		err = f.put(f.size, text)
	}
	if err != nil {
		return err
	}
	f.size = end
	f.lines += len(entries)
	return nil
}

// A copying is the roll that is to take the place of the one in use. It is written from the table some leases at a time, and others write to the record between, so
// that nobody waits for longer than a step takes, however many leases there are. What is written to the record meanwhile comes into it with the next step. At no moment
// is there less than one whole roll.
type copying struct {
	roll
	missed []entry // since the last step
	wanted bool    // by renew, so that it is tried again
}

func (r *record) nextPath() string { return r.path() + ".new" }

// tooLong reports whether the record is to be written anew because of what is over.
func (r *record) tooLong() bool { return r.next == nil && r.now != nil && r.now.lines > r.limit }

// shorten does one step of writing the record anew, if that is to be done.
func (r *record) shorten() error {
	r.mu.Lock()
	anew := r.anew
	r.anew = false
	r.mu.Unlock()
	if anew || r.tooLong() {
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
	var err error
	if r.next.sheet, err = openSheet(r.nextPath(), os.O_CREATE|os.O_EXCL); err != nil {
		return r.fail(err)
	}
	r.next.generation = time.Now().UnixNano()
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
	r.now.path = r.path()
	r.limit = 2*r.now.lines + copySlack
	r.closeNote() // it may have been removed with the record, so it is opened by its path again
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
	if r.next.sheet != nil {
		err = errors.Join(r.next.close(), os.Remove(r.nextPath()))
	}
	r.next = nil
	return err
}
