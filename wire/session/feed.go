package session

import (
	"io"
	"sync"
)

// A feed is what the conn's reader passes on to yamux. It is a pipe whose writer goes on, and waits only before it uses the memory again: so the two switch
// once for all that came with one read of the socket, and not for each part of each frame.
type feed struct {
	mu      sync.Mutex
	changed sync.Cond // parts were added or all read, or the feed has ended
	parts   [][]byte  // still the writer's memory
	end     error     // what is read behind parts; nil: more comes
	closed  bool      // by who reads
}

func (f *feed) init() { f.changed.L = &f.mu }

// pass adds parts, which are read at settle or finish. It fails with io.ErrClosedPipe if nobody reads them.
func (f *feed) pass(parts ...[]byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return io.ErrClosedPipe
	}
	f.parts = append(f.parts, parts...)
	return nil
}

// settle returns when all parts have been read, or nobody reads them any more.
func (f *feed) settle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.parts) > 0 {
		f.changed.Broadcast()
	}
	for len(f.parts) > 0 {
		f.changed.Wait()
	}
}

// finish has reading fail with err behind what was passed. The first call counts.
func (f *feed) finish(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end == nil {
		f.end = err
	}
	f.changed.Broadcast()
}

// close lets go of what was passed.
func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed, f.parts = true, nil
	f.changed.Broadcast()
}

// Read reads from one part at a time, so that a large one is copied once.
func (f *feed) Read(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.parts) == 0 {
		switch {
		case f.closed:
			return 0, io.ErrClosedPipe
		case f.end != nil:
			return 0, f.end
		}
		f.changed.Wait()
	}
	n := copy(b, f.parts[0])
	if f.parts[0] = f.parts[0][n:]; len(f.parts[0]) == 0 {
		f.parts = f.parts[1:]
		if len(f.parts) == 0 {
			f.changed.Broadcast()
		}
	}
	return n, nil
}
