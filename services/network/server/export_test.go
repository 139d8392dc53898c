package server

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"
)

// Waiting returns how many requests wait for an address.
func (s *Server) Waiting() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.segments {
		n += len(g.waiters)
	}
	return n
}

// InDoubt reports whether it is not known which addresses are free.
func (s *Server) InDoubt() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doubt != nil
}

// Copy has a record written anew when it has more than twice its lines and slack more, step leases at a time.
func Copy(slack, step int) { copySlack, copyStep = slack, step }

// An Entry is a line of the record.
type Entry = entry

// Decode and Encode are those of a line.
func Decode(line []byte) (Entry, error) { return decode(line) }

// Seal returns text as a line with a right checksum.
func Seal(text []byte) []byte {
	return fmt.Appendf(nil, "%08x %s", crc32.ChecksumIEEE(text), text)
}

func Encode(e Entry) []byte { return e.append(nil) }

// A Sheet is a file that is written through memory.
type Sheet struct{ *sheet }

func OpenSheet(path string) (Sheet, error) {
	s, err := openSheet(path, os.O_CREATE)
	return Sheet{s}, err
}

func (s Sheet) Grow(to int64) error             { return s.grow(to) }
func (s Sheet) Put(at int64, text []byte) error { return s.put(at, text) }
func (s Sheet) Check() error                    { return s.check() }
func (s Sheet) Close() error                    { return s.close() }

// ErrLost is why a Sheet cannot be written.
var ErrLost = errLost

// Sign is what is written of a record's length.
func Sign(boot string, generation, size int64) string {
	return string(sign{boot: boot, generation: generation, size: size}.append(nil))
}

// ReadLines reads a record that has no sign, and returns the leases in it and what is wrong with it.
func ReadLines(text []byte, boot string) ([]Entry, error) {
	r, err := readLines("record", bytes.NewReader(text), boot, nil)
	if err != nil {
		return nil, err
	}
	return r.holds, r.damage
}

// A Memory is that of a network.
type Memory = memory

// Remember and Recall are those of a memory.
func (m *memory) Remember(hostname string, addresses []netip.Addr) { m.remember(hostname, addresses) }
func (m *memory) Recall(hostname string) []netip.Addr              { return m.recall(hostname) }

// A Space is what is written down about a network namespace.
type Space = space

// SameWitness reports whether two namespaces are one witness.
func SameWitness(a, b Space) bool { return (&keeper{space: a}).same(&keeper{space: b}) }
