package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/fairlead-dev/fairlead/internal/process"
)

// The files of a record, in the service's state folder.
const (
	recordName = "leases.log"
	// signName is the file that shows that there was a record, and how long it was: its boot, generation and bytes. It is written after each
	// line, so a record is never shorter; what is longer is a line that nobody was answered on. Its second line is that of a record which is about to take the other's
	// place, or of generation 0.
	signName = "started"
)

// A sign is a line of the file of that name.
type sign struct {
	boot       string
	generation int64
	size       int64
}

// append appends the sign to b, in a length that is always the same, so that it is written over in place.
func (s sign) append(b []byte) []byte {
	b = append(b, s.boot...)
	for _, n := range []int64{s.generation, s.size} { // as "%020d" does
		b = append(b, " 00000000000000000000"...)
		for at := len(b) - 1; n > 0; at, n = at-1, n/10 {
			b[at] = byte('0' + n%10)
		}
	}
	return append(b, '\n')
}

// readSigns returns the signs in a file. It has not found any if there is no file or they are of another boot. One that is malformed is left out.
func readSigns(path, boot string) (signs []sign, found bool, err error) {
	file, err := openRegular(path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, 4096))
	if err != nil {
		return nil, false, err
	}
	for line := range strings.Lines(string(text)) {
		var s sign
		switch _, err := fmt.Sscanf(line, "%s %d %d\n", &s.boot, &s.generation, &s.size); {
		case err != nil:
		case s.boot != boot:
			return nil, false, nil
		default:
			signs = append(signs, s)
		}
	}
	return signs, true, nil
}

// openRegular opens a file of the record, and nothing else that stands in its place: a link leads elsewhere, and a pipe has whoever opens it wait.
func openRegular(path string, flags int) (*os.File, error) {
	file, err := os.OpenFile(path, flags|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file: remove it", path)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// A reading is what a record says.
type reading struct {
	fresh    bool         // nothing shows that there was an earlier instance in this boot
	holds    []entry      // the leases that were not over, in the order they were allocated
	doubt    bool         // an earlier reading was damaged, and its suspects may live
	suspects []process.ID // of that
	damage   error        // why more than this may have been held; nil: nothing is missing
	version  int          // of a record that only a later program can read; 0: it is none
}

// readRecord reads the record in a folder. A record that is damaged is no error.
func readRecord(folder, boot string) (*reading, error) {
	signs, found, err := readSigns(folder+"/"+signName, boot)
	if err != nil {
		return nil, fmt.Errorf("read the record of leases: %w", err)
	}
	path := folder + "/" + recordName
	file, err := openRegular(path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		if !found {
			return &reading{fresh: true}, nil
		}
		return &reading{damage: fmt.Errorf("%s is missing", path)}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of leases: %w", err)
	}
	defer file.Close()
	return readLines(path, file, boot, signs)
}

// readLines reads a record's lines, and compares it with its sign.
func readLines(path string, file io.Reader, boot string, signs []sign) (*reading, error) {
	r := replay{held: map[string]*entry{}, owner: map[string]string{}}
	lines := bufio.NewReaderSize(file, maxLine)
	var size, whole int64 // bytes, and those up to the end of the last whole line
	for number := 1; ; number++ {
		line, err := lines.ReadSlice('\n')
		size += int64(len(line))
		if len(line) > 0 && line[0] == 0 {
			size -= int64(len(line))
			break // nothing was written there, or not to the end: the first byte of a line is stored last
		}
		if err == io.EOF {
			break // what may be left is a line without its end
		}
		whole = size
		e := entry{}
		if err == nil {
			e, err = decode(line[:len(line)-1])
		} else if errors.Is(err, bufio.ErrBufferFull) {
			err = fmt.Errorf("a line of more than %d bytes", maxLine)
		} else {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if number == 1 && err == nil && e.Kind != entryHead {
			err = errors.New("the head is missing")
		}
		if err != nil {
			r.garbled(number, err)
		}
		if err == nil && e.Kind == entryHead && e.Boot != boot {
			return &reading{fresh: true}, nil // nothing of another boot lives
		}
		if err == nil && e.Kind == entryHead && e.Version > recordVersion {
			return later(path, e.Version), nil
		}
		r.take(e)
	}
	return r.result(path, signs, size, whole), nil
}

// later returns what is known of a record that a later program has written.
func later(path string, version int) *reading {
	return &reading{version: version, damage: fmt.Errorf("%s is of version %d, and this program reads up to version %d: it is set aside as %s",
		path, version, recordVersion, aside(path, version))}
}

// aside returns where a record of a later version is kept.
func aside(path string, version int) string { return fmt.Sprintf("%s.version-%d", path, version) }

// A replay follows a record's lines.
type replay struct {
	reading
	held       map[string]*entry // by lease
	order      []string
	owner      map[string]string // the lease that has an address, hostname or MAC of a network
	generation int64
	bad        int // lines that cannot be read
	first      error
}

func (r *replay) garbled(number int, err error) {
	if r.bad++; r.bad == 1 {
		r.first = fmt.Errorf("line %d: %w", number, err)
	}
}

// take takes one line. Those on leases that are not known are of leases that are over.
func (r *replay) take(e entry) {
	held := r.held[e.Lease]
	switch e.Kind {
	case entryHead:
		r.generation = e.Generation
	case entryHold:
		r.hold(e)
	case entryWitness:
		switch {
		case held == nil:
		case e.Space != (space{}):
			if !slices.Contains(held.Spaces, e.Space) {
				held.Spaces = append(held.Spaces, e.Space)
			}
		case !slices.Contains(held.Witnesses, e.Process):
			held.Witnesses = append(held.Witnesses, e.Process)
		}
	case entryLeave:
		if held != nil {
			held.Left, held.Holder = true, process.ID{}
		}
	case entryFree:
		delete(r.held, e.Lease)
	case entryDoubt:
		r.doubt = true
	case entrySuspect:
		r.doubt = true
		r.suspects = append(r.suspects, e.Process)
	}
}

// hold takes a lease. What it has was free by then: an earlier lease that has it too is over, and its line is not there, or not yet.
func (r *replay) hold(e entry) {
	keys := []string{"mac " + e.Network + " " + e.MAC}
	if e.Hostname != "" {
		keys = append(keys, "hostname "+e.Network+" "+e.Hostname)
	}
	for _, a := range e.Addresses {
		keys = append(keys, "address "+a.Addr().String())
	}
	for _, key := range keys {
		if other := r.owner[key]; other != e.Lease {
			delete(r.held, other)
		}
		r.owner[key] = e.Lease
	}
	if r.held[e.Lease] == nil {
		r.order = append(r.order, e.Lease)
	}
	r.held[e.Lease] = &e
}

// result compares what was read with the sign.
func (r *replay) result(path string, signs []sign, size, whole int64) *reading {
	for _, id := range r.order {
		if e := r.held[id]; e != nil {
			r.holds = append(r.holds, *e)
			delete(r.held, id)
		}
	}
	own := slices.IndexFunc(signs, func(s sign) bool { return s.generation == r.generation })
	noted := own >= 0 && r.generation != 0
	var reasons []string
	if r.bad > 0 {
		reasons = append(reasons, fmt.Sprintf("%d malformed lines, the first is %v", r.bad, r.first))
	}
	switch {
	case size == 0:
		reasons = append(reasons, "it is empty")
	case noted && size < signs[own].size:
		reasons = append(reasons, fmt.Sprintf("it is short: it has %d bytes and had %d", size, signs[own].size))
	case whole < size && !(noted && whole >= signs[own].size):
		reasons = append(reasons, "its last line has no end")
	}
	if len(reasons) > 0 {
		r.damage = fmt.Errorf("%s: %s", path, strings.Join(reasons, "; "))
	}
	return &r.reading
}
